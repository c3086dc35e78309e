"""What a request could get if no device were in use: which devices, and how many on each node.

Kept by `prefilter.RequestColumns` until a device is published again, so that a refused pod costs no
more for it. Read by `controller.decide` to tell what can never be met from what is only
in use now. Pure.
"""

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

import numpy as np

from controller.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED
from controller.inventory.columns import NOWHERE
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import NUMBER

_PASSING: Final = (NUMBER[device_codes.CARD_NOT_HEALTH], NUMBER[device_codes.CARD_CORDONED])
"""Reasons that can end without a change to the pod or the hardware."""
_KEPT: Final = 64
"""Results derived from one column: claims may name any number of attributes."""
_Value = TypeVar("_Value")


class IdleDevices:
    """The verdicts of one shape of request on idle and healthy devices.

    `codes`: by device row, the first lasting reason; 0: it could be given. Devices 0 and 1 are on
    node 0, device 2 on node 1, device 3 on none; device 2 is too small:

        codes       [0, 0, CARD_INSUFFICIENT_MEMORY, 0]
        per_node    [2, 0]
        of_class    [2, 1]
        anywhere    1        so `enough(3)` is [True, False]
    """

    def __init__(self, published: Codes, kinds: Codes, node: Ints, nodes: int) -> None:
        """`published`: codes as if nothing were in use. `kinds`: those by capacity alone, `node`:
        of each device, both by row. `nodes`: number of node rows.
        """
        self.codes: Codes = published.copy()
        for number in _PASSING:
            ill = published == number
            self.codes[ill] = kinds[ill]
        self.codes[self.codes == UNJUDGED] = 0
        could = self.codes == 0
        self.owned: Positions = np.flatnonzero((published != NOT_OF_CLASS) & (node >= 0))
        """Rows of the devices of the request's class that a node owns."""
        self.possible: Positions = np.flatnonzero(could & (node >= 0))
        """Rows of those among them that could be given."""
        self.per_node: Ints = np.bincount(node[self.possible], minlength=nodes)
        self.of_class: Ints = np.bincount(node[self.owned], minlength=nodes)
        self.anywhere = int(np.count_nonzero(could & (node == NOWHERE)))
        self._kept: dict[Hashable, object] = {}

    @property
    def rows_of_class(self) -> Positions:
        return np.flatnonzero(self.codes != NOT_OF_CLASS)

    def enough(self, count: int) -> Bools:
        """Return the nodes that could give `count` devices. Shape (nodes,)."""
        return self.per_node + self.anywhere >= max(count, 1)

    def kept(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the cached result derived from these verdicts; it is valid as long as they are."""
        if key not in self._kept:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[return-value] # made by `make` of the same key
