"""actionlint, built from its Go module: the tests check .github/workflows with it.

`python hack/actionlint/actionlint.py` builds it beforehand and prints its path.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.gobuild import Tool

ACTIONLINT: Final = Tool(
    "actionlint", Path(__file__).resolve().parent, "github.com/rhysd/actionlint/cmd/actionlint", "about 20 s"
)


if __name__ == "__main__":
    sys.exit(ACTIONLINT.main())
