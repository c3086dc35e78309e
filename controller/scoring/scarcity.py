"""The scarcity of the types of cards for one request: rare among those that would do as well, or
larger than necessary.

Called by `scoring.ranking`. A type is driver, product and memory. Of the types that could serve the
request at all, in use or not:

    scarcity = rare x (1 - cards of the type / cards of the commonest)
             + large x (1 - memory of the smallest / memory of the type)

in cards, with the weights of `Packing`. So the commonest and smallest type has 0, and so has a type
that is the only choice. With rare = large = 1, 30 cards of 24 GiB and 6 of 96 GiB: the large ones
have (1 - 6/30) + (1 - 24/96) = 1.55. Pure; computed again when devices come or go.
"""

import numpy as np

from controller.allocation.prefilter import RequestColumns
from controller.inventory.card_grid import CardGrid
from controller.inventory.roles import WHOLE_CARD
from controller.scoring.policies import Packing
from hami_dra.api.arrays import Ints


class Scarcity:
    def __init__(self, grid: CardGrid, column: RequestColumns, weights: Packing) -> None:
        self._grid = grid
        self._column = column
        self._weights = weights
        self._by_type: Ints = np.zeros(1, dtype=np.int64)

    def of(self, types: Ints) -> Ints:
        """Return millionths of a card, for numbers of types; 0 for -1. Any shape."""
        found: Ints = self._by_type[np.where((types >= 0) & (types < len(self._by_type) - 1), types, -1)]
        return found

    def refresh(self) -> bool:
        """Recompute, and return whether anything changed. To be called when nodes have other devices."""
        if not self._weights.minds_scarcity:
            return False
        before, self._by_type = self._by_type, self._judged()
        return not np.array_equal(before, self._by_type)

    def _judged(self) -> Ints:
        """Return the scarcity by number of the type, with a 0 after the last (index -1: no type)."""
        grid = self._grid
        line, column = np.nonzero(grid.type >= 0)
        types = grid.type[line, column]
        count = len(grid.types)
        cards = np.bincount(types, minlength=count)
        serves = np.bincount(types[self._column.could(grid.rows[line, column])], minlength=count) > 0
        found = np.zeros(count + 1, dtype=np.float64)
        if serves.any():
            memory = np.array([memory for _, _, memory in grid.types.values], dtype=np.float64)
            known = serves & (memory > 0)
            smallest = memory[known].min() if known.any() else 0.0
            rare = 1.0 - cards / cards[serves].max()
            large = 1.0 - np.divide(smallest, memory, out=np.ones(count), where=known)
            found[:count] = np.where(
                serves, self._weights.rare * np.clip(rare, 0, 1) + self._weights.large * large, 0.0
            )
        judged: Ints = np.rint(found * WHOLE_CARD).astype(np.int64)
        return judged
