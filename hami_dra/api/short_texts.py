"""Tables of what texts mean. Tenants choose the texts, so every table is bounded by bytes, not only
by entries: what is long is computed each time.
"""

from collections.abc import Callable
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
SHORT: Final = 128
"""Characters of a text that is kept. Quantities, versions and names of labels have fewer."""


def cached_if_short(most: int, longest: int = SHORT) -> Callable[[Callable[[K], V]], Callable[[K], V]]:
    """Keep the results of a function of a text, or of a tuple with texts.

    `most`: results; a full table is emptied. `longest`: characters of a text whose result is kept.

    >>> calls = []
    >>> size = cached_if_short(2)(lambda text: calls.append(text) or len(text))
    >>> [size(text) for text in ("app", "app", "x" * 500, "x" * 500)], len(calls)
    ([3, 3, 500, 500], 3)
    """
    return lambda function: _Results(function, most, longest).__getitem__


class _Results(dict[K, V]):
    """A look-up costs less than in an `lru_cache`."""

    def __init__(self, function: Callable[[K], V], most: int, longest: int) -> None:
        super().__init__()
        self._function = function
        self._most = most
        self._longest = longest

    def __missing__(self, key: K) -> V:
        found = self._function(key)
        texts = key if isinstance(key, tuple) else (key,)
        if all(len(text) <= self._longest for text in texts if isinstance(text, str | bytes)):
            if len(self) >= self._most:
                self.clear()
            self[key] = found
        return found
