"""How many examples properties try, where a test says how many."""

import os
from typing import Final

SOAK: Final = os.environ.get("HAMI_DRA_PROPERTIES") == "soak"


def examples(few: int) -> int:
    """Return `few` for `make test`, which asks the same questions each time, and 20 times as many for `make soak`."""
    return 20 * few if SOAK else few
