"""Comparisons by rounds: every variant once in each, in an order of its own; medians with their spread."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

LEAST_ROUNDS = 5
SEED = 259
DRAWS = 2000


def orders(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the order of each round: shuffled, no round as the one before it where that is
    possible.

    >>> [each != other for each, other in zip(orders("abc", 4), orders("abc", 4)[1:])]
    [True, True, True]
    """
    chance = random.Random(SEED)
    found: list[list[str]] = []
    for _ in range(rounds):
        order = list(names)
        chance.shuffle(order)
        while found and len(order) > 1 and order == found[-1]:
            chance.shuffle(order)
        found.append(order)
    return found


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and the least and most in brackets.

    >>> spread([3.0, 1.0, 2.0])
    '2.0 [1.0, 3.0]'
    """
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def quartiles(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and the first and third quartile in brackets.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 50.0])
    '3.0 [2.0, 4.0]'
    """
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def interval(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and in brackets the interval in which 95 of 100 medians of redrawn values
    lie (bootstrap).

    >>> interval([5.0] * 9)
    '5.0 [5.0, 5.0]'
    """
    chance = random.Random(SEED)
    drawn = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    low, high = drawn[DRAWS // 40], drawn[-DRAWS // 40]
    return f"{statistics.median(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return the ratio within each round; rounds without a base are left out."""
    return [value / other for value, other in zip(values, base, strict=True) if other]
