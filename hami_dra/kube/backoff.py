"""Delay after the nth consecutive failure: doubling, bounded, with jitter where many clients retry."""

import random
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

_MOST_DOUBLINGS: Final = 30
"""More doublings exceed every limit, and eventually the range of a float."""


def doubled(first: float, times: int, most: float) -> float:
    """Return `first` doubled `times` times, at most `most`.

    >>> [doubled(5.0, times, 60.0) for times in (0, 1, 2, 3, 4, 1_000_000)]
    [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    """
    return min(first * float(1 << min(times, _MOST_DOUBLINGS)), most)


class Backoff(Struct):
    """Seconds to wait.

    `next()` returns first, 2·first, 4·first, ... up to `most`, each times a random factor in [0.5,
    1.5).
    """

    first: float = 0.2
    most: float = 15.0
    uniform: Callable[[], float] = field(default=random.random)
    failures: int = 0

    def next(self) -> float:
        seconds = doubled(self.first, self.failures, self.most)
        self.failures += 1
        return seconds * (0.5 + self.uniform())

    def reset(self) -> None:
        self.failures = 0
