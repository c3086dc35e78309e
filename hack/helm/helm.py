"""Helm, built from its Go module with the toolchain that builds the control plane, into the same cache outside the checkout.

Used by the tests of charts/ and hack/kind on a real API server; `python hack/helm/helm.py` builds it beforehand and prints its
path. A Helm on the PATH is not taken: its version would decide what the tests see.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.controlplane.build import BuildError, cache_folder, find_go

HERE: Final = Path(__file__).resolve().parent
_PACKAGE: Final = "helm.sh/helm/v4/cmd/helm"
_ENVIRONMENT: Final = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}


@functools.cache
def binary() -> Path:
    """Where it is, whether it has been built or not."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in ("go.mod", "go.sum")))
    return cache_folder().parent / "helm" / f"helm-{digest.hexdigest()[:12]}"


def ensure() -> Path:
    """The program, built first where it is missing: minutes with empty caches. Raises BuildError."""
    path = binary()
    if path.exists():
        return path
    go = find_go()
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"[helm] building it with {go} into {path} (once; about 3 min on 2 cores)", flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        built = Path(scratch) / "helm"
        command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", built, _PACKAGE]
        done = subprocess.run(
            command, cwd=HERE, env={**os.environ, **_ENVIRONMENT}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"Helm cannot be built (it needs a Go module proxy):\n{done.stderr[-2_000:]}")
        built.rename(path)
    return path


def main() -> int:
    try:
        print(ensure())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
