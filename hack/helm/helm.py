"""Helm, built from its Go module into the cache of the control plane's binaries, outside the checkout.

Used by the tests of charts/ and hack/kind on a real API server; `python hack/helm/helm.py` builds it beforehand and prints its
path. A Helm on the PATH is not taken: its version would decide what the tests see.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack import gobuild
from hack.controlplane.build import BuildError, cache_folder

HERE: Final = Path(__file__).resolve().parent
_PACKAGE: Final = "helm.sh/helm/v4/cmd/helm"


@functools.cache
def binary() -> Path:
    """Where it is, whether it has been built or not."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in ("go.mod", "go.sum")))
    return cache_folder().parent / "helm" / f"helm-{digest.hexdigest()[:12]}"


def ensure() -> Path:
    """The program, built first where it is missing: minutes with empty caches. Raises BuildError."""
    return gobuild.build("Helm", HERE, _PACKAGE, binary())


def main() -> int:
    """Where it cannot be built, the tests that need it are skipped; with REQUIRE_ALL=1 that is a failure."""
    if not binary().exists():
        print(f"[helm] building it into {binary()} (once; about 3 min on 2 cores)", flush=True)
    try:
        print(ensure())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1 if os.environ.get("REQUIRE_ALL") == "1" else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
