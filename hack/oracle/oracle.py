"""The answers of Kubernetes, Prometheus and NVIDIA, from small Go programs on their published
modules.

Used by tests/conformance, tests/property, hack/fuzz.py and hack/oracle/cel_golden.py. Each folder
beside this file that holds a go.mod is one oracle: it reads JSON questions from standard input, one
a line, and writes one JSON answer a line. `nodefit` is one for each Kubernetes version
(`nodefit-1.37.1`), built from the modules of that version's control plane. Built once with the Go
toolchain that builds the control plane, into the same cache outside the checkout, keyed by the
sources; `python hack/oracle/oracle.py` builds all, so that no test waits for it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack import gobuild
from hack.controlplane.build import BuildError, cache_folder

HERE: Final = Path(__file__).resolve().parent
_IN_C: Final = frozenset({"nvcdi"})
"""Oracles with parts in C, which need a C compiler."""
_VERSIONED: Final = {"nodefit": ("1.37.1", "1.36.4"), "preempt": ("1.37.1",)}
"""Folder → the Kubernetes versions it is built from; its oracles are called FOLDER-VERSION."""


def oracles() -> list[str]:
    """Return the names of all oracles."""
    folders = sorted(path.parent.name for path in HERE.glob("*/go.mod"))
    return [
        name
        for folder in folders
        for name in ([f"{folder}-{version}" for version in _VERSIONED[folder]] if folder in _VERSIONED else [folder])
    ]


def _source_of(name: str) -> tuple[Path, Path | None]:
    """Return the folder of an oracle, and the go.mod to use where it is not the folder's own."""
    folder, _, version = name.partition("-")
    modules = HERE.parent / "controlplane" / f"v{version}" / "go.mod"
    return HERE / folder, modules if version else None


@functools.cache
def binary_of(name: str) -> Path:
    """Where the program is, whether it has been built or not."""
    folder, modules = _source_of(name)
    digest = hashlib.sha256()
    paths = sorted(folder.iterdir())
    paths += [modules, modules.with_suffix(".sum")] if modules is not None else []
    for path in paths:
        digest.update(path.name.encode() + path.read_bytes())
    return cache_folder().parent / "oracle" / f"{name}-{digest.hexdigest()[:12]}"


def ensure(name: str) -> Path:
    """The program, built first where it is missing: minutes with empty caches, else seconds. Raises BuildError."""
    folder, modules = _source_of(name)
    return gobuild.build(
        f"the oracle {name!r}", folder, ".", binary_of(name), modules=modules, cgo=name.partition("-")[0] in _IN_C
    )


def ask(name: str, questions: Iterable[dict[str, Any]], seconds: float = 240) -> list[dict[str, Any]]:
    """All answers, in order. Raises BuildError, or RuntimeError when the program does not answer."""
    asked: Sequence[str] = [json.dumps(question) for question in questions]
    done = subprocess.run(
        [ensure(name)], input="\n".join(asked), capture_output=True, text=True, check=False, timeout=seconds
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(asked):
        raise RuntimeError(
            f"the oracle {name!r} gave up after {len(answers)} of {len(asked)} questions: {done.stderr[-500:]}"
        )
    return answers


class Conversation:
    """A running oracle that is asked one question at a time, each where the last answer leads. To
    be used with `with`.
    """

    def __init__(self, name: str) -> None:
        """Raises BuildError."""
        self._name = name
        self._process = subprocess.Popen([ensure(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises RuntimeError when the program does not answer."""
        asking, answering = self._process.stdin, self._process.stdout
        assert asking is not None
        assert answering is not None
        asking.write(json.dumps(question) + "\n")
        asking.flush()
        line = answering.readline()
        if not line:
            raise RuntimeError(f"the oracle {self._name!r} gave up; its last words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def main() -> int:
    """Where a program cannot be built, the tests that need it are skipped; with REQUIRE_ALL=1 that is a failure."""
    failed = False
    for name in oracles():
        started = time.monotonic()
        try:
            ensure(name)
        except BuildError as error:
            print(error, file=sys.stderr)
            failed = True
        else:
            print(f"{name}: {binary_of(name)}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed and os.environ.get("REQUIRE_ALL") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
