"""The range of every amount that goes into a column, and sums that stay in it.

The API server stores quantities of any size (`8E` in each of ten containers, `1e400`), and int64
columns hold no more than 2^63 - 1. So sums are made of Python's integers, which cannot overflow,
and are `saturated` when they become a column's. An amount beyond the range fits nowhere and never
wraps around to "free": a pod that requests `MOST` gets nothing, and a node that holds `MOST` is
full. Requests below zero count as zero.
"""

from typing import Final

import numpy as np

from hami_dra.api.arrays import Ints, Positions

MOST: Final = 2**62 - 1
"""Limit of what nodes offer and pods request: sums and differences of two such amounts fit an int64."""
CARD_MOST: Final = 2**48 - 1
"""Limit of a card's capacity, usage and requests: 256 TiB. Products with 10,000, and sums of as many, fit an int64."""
_HALF: Final = 32


def saturated(amount: int, most: int = MOST) -> int:
    """Return the amount, or the end of the range (0 to `most`) that is nearest to it.

    >>> saturated(5), saturated(-5), saturated(10**400) == MOST
    (5, 0, True)
    """
    return amount if 0 <= amount <= most else 0 if amount < 0 else most


def sums(group: Positions, values: Ints, count: int) -> list[int]:
    """Return for each of `count` groups the saturated sum of its values.

    `group` and `values` have the same shape (n,), values from 0 to `MOST`. Exact up to `MOST`:
    upper and lower halves of the values are added separately, so that neither overflows.

    >>> sums(np.array([0, 1, 0]), np.array([5, 2**61, 7]), 2) == [12, 2**61]
    True
    >>> sums(np.zeros(4, dtype=np.intp), np.full(4, MOST), 1) == [MOST]     # 2^64, saturated
    True
    """
    high, low = np.zeros((2, count), dtype=np.int64)
    np.add.at(high, group, values >> _HALF)
    np.add.at(low, group, values & ((1 << _HALF) - 1))
    return [saturated((upper << _HALF) + lower) for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]
