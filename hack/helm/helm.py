"""Helm, built from its Go module into the cache of the control plane's binaries, outside the
checkout.

Used by `make release` and by the tests of charts/ and hack/kind on a real API server; `python
hack/helm/helm.py` builds it beforehand and prints its path.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.gobuild import Tool

HERE: Final = Path(__file__).resolve().parent
HELM: Final = Tool("Helm", HERE, "helm.sh/helm/v4/cmd/helm", "about 3 min")
binary = HELM.binary
ensure = HELM.ensure


if __name__ == "__main__":
    sys.exit(HELM.main())
