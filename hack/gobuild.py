"""One Go program, built once with the toolchain that builds the control plane. Used by hack/oracle,
hack/helm and hack/actionlint.

In: the folder of a Go module, a package, where the program shall be. Out: the program there, whole
or not at all. The control plane's own builds, which take minutes and show their progress, are in
hack/controlplane/build.py.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hack.controlplane.build import BuildError, cache_folder, find_go, go_environment, require_c_compiler


def build(
    what: str, module: Path, package: str, target: Path, *, modules: Path | None = None, cgo: bool = False
) -> Path:
    """Return `target`, built first where it is missing. Raises BuildError, which calls the program
    `what`.

    `modules`: a go.mod to use in place of the module's own; go.sum is expected beside it.
    `cgo`: it has parts in C, and is linked against this machine's C library.
    """
    if target.exists():
        return target
    if cgo:
        require_c_compiler(what)
    go = find_go()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "program"
        command = [str(go), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(built)]
        command += [f"-modfile={modules}"] if modules is not None else []
        command.append(package)
        done = subprocess.run(
            command, cwd=module, env=go_environment(cgo=cgo), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"{what} cannot be built (it needs a Go module proxy):\n{done.stderr[-2_000:]}")
        built.rename(target)
    return target


@dataclass(frozen=True)
class Tool:
    """A published program, built from its Go module at the version in `folder`/go.mod.

    A program on the PATH is never taken: its version would decide what the tests see.
    """

    title: str
    folder: Path
    package: str
    takes: str
    """How long a build takes with empty caches, for the user who waits."""

    def binary(self) -> Path:
        """Where it is, whether it has been built or not."""
        digest = hashlib.sha256(b"".join((self.folder / name).read_bytes() for name in ("go.mod", "go.sum")))
        return cache_folder().parent / self.folder.name / f"{self.folder.name}-{digest.hexdigest()[:12]}"

    def ensure(self) -> Path:
        """The program, built first where it is missing. Raises BuildError."""
        return build(self.title, self.folder, self.package, self.binary())

    def main(self) -> int:
        """Where it cannot be built, the tests that need it are skipped; with REQUIRE_ALL=1 that is a failure."""
        if not self.binary().exists():
            print(f"[{self.folder.name}] building it into {self.binary()} (once; {self.takes} on 2 cores)", flush=True)
        try:
            print(self.ensure())
        except BuildError as error:
            print(error, file=sys.stderr)
            return 1 if os.environ.get("REQUIRE_ALL") == "1" else 0
        return 0
