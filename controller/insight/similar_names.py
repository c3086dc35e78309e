"""What else a user may have meant who named something that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_MOST: Final = 5


def similar(name: str, known: Iterable[str]) -> str:
    """Return the end of the message: the most similar names, else some of those that there are.

    >>> similar("t4-1", ["t4-0", "a10g-0"])
    '; did you mean t4-0?'
    >>> similar("web", ["a", "b"])
    '; there are a, b'
    >>> similar("web", [])
    ''
    """
    names = sorted(known)
    if near := get_close_matches(name, names, n=_MOST):
        return f"; did you mean {', '.join(near)}?"
    more = ", ..." if len(names) > _MOST else ""
    return f"; there are {', '.join(names[:_MOST])}{more}" if names else ""
