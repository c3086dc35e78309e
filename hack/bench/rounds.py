"""Comparisons by rounds: every variant once in each, in an order of its own; medians with their spread."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

LEAST_ROUNDS = 5
SEED = 259


def orders(names: Sequence[str], rounds: int) -> list[list[str]]:
    """Return the order of each round: shuffled, no round as the one before it where that is possible.

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


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return the ratio within each round; rounds without a base are left out."""
    return [value / other for value, other in zip(values, base, strict=True) if other]
