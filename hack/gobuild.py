"""One Go program, built once with the toolchain that builds the control plane. Used by hack/oracle and hack/helm.

In: the folder of a Go module, a package, where the program shall be. Out: the program there, whole or not at all. The control plane's
own builds, which take minutes and show their progress, are in hack/controlplane/build.py.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from hack.controlplane.build import BuildError, find_go, go_environment, require_c_compiler


def build(
    what: str, module: Path, package: str, target: Path, *, modules: Path | None = None, cgo: bool = False
) -> Path:
    """Return `target`, built first where it is missing. Raises BuildError, which calls the program `what`.

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
