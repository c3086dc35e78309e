"""Restriction of one decision to some nodes: those of a topology domain, or of a plan. Pure."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from hami_dra.api.arrays import Bools, Ints


class AllowedNodes:
    """The nodes that a decision may choose.

    `mask`: by row of the node, shape (nodes.size,); holds while no node comes or goes. Compared by
    identity, so that requests stay hashable.
    """

    __slots__ = ("mask", "rows")

    def __init__(self, mask: Bools) -> None:
        self.mask: Final = mask
        self.rows: Final[Ints] = np.flatnonzero(mask).astype(np.int64)

    @classmethod
    def of_rows(cls, rows: Iterable[int], size: int) -> "AllowedNodes":
        """`size`: number of node rows."""
        mask = np.zeros(size, dtype=np.bool_)
        mask[[*rows]] = True
        return cls(mask)

    def without(self, row: int) -> "AllowedNodes":
        mask = self.mask.copy()
        mask[row] = False
        return AllowedNodes(mask)
