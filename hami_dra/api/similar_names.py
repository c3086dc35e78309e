"""What else a user may have meant who named something that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

_MOST: Final = 5
_MOST_COMPARED: Final = 200


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` with the most similar name; empty if there is none.

    >>> did_you_mean("nvidia-gpus", ["nvidia-gpu.hami.io", "metax-gpu.hami.io"])
    ' (did you mean nvidia-gpu.hami.io?)'
    >>> did_you_mean("nope", ["nvidia-gpu.hami.io"])
    ''
    """
    near = get_close_matches(name, sorted(islice(known, _MOST_COMPARED)), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
