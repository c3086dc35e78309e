"""The name under which the user started this program: `hami-dra`, or `kubectl hami` for the plugin."""

import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = "hami-dra"
PLUGIN: Final = "kubectl hami"
_PLUGIN_FILE: Final = "kubectl-hami"
"""kubectl runs a file of this name on its PATH for `kubectl hami`."""


def program() -> str:
    """Return how the user calls this program, for usage lines and for the commands in notes."""
    return PLUGIN if Path(sys.argv[0]).name.startswith(_PLUGIN_FILE) else PROGRAM


def as_typed(text: str) -> str:
    typed = program()
    return text if typed == PROGRAM else text.replace(f"{PROGRAM} ", f"{typed} ")
