"""Booleans as Go writes and reads them (strconv.ParseBool): in annotations, variables and flags of
Kubernetes' and HAMi's programs. The one place of that rule.
"""

from typing import Final

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def parse_bool(text: str) -> bool | None:
    """Return the value, or None for text that ParseBool refuses.

    >>> parse_bool("True"), parse_bool("0"), parse_bool("yes"), parse_bool("tRUE")
    (True, False, None, None)
    """
    if text in _TRUE:
        return True
    return False if text in _FALSE else None
