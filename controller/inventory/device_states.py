"""A number for the state of each device: devices with equal numbers are interchangeable for a request.

One column for all requests, so that each judges a state once, and not thousands of devices in it.
"""

from typing import Final

import numpy as np

from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.growth import Interned, grown
from controller.inventory.columns import NOWHERE, DeviceState
from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Codes, Floats, Ints, Positions

_MOST: Final = 1 << 15
"""States that are kept, those that no device has any more included."""
_FEW: Final = 64
"""Looks for which the devices of each node are counted beforehand."""


class Looks:
    """Devices by their looks. `rows`: one of each look; `places`: for each row, the place of its look in `rows`.

    Four devices, of which the last two look alike:

        state   [0, 0, 1, 1]
        code    [7, 0, 0, 0]    ->  rows [1, 3, 0],  places [2, 0, 1, 1]
    """

    def __init__(self, rows: Positions, places: Positions, owners: Ints, nodes: int) -> None:
        """`owners`: by row, as `DeviceColumns.node`; `nodes`: number of rows of nodes."""
        self.rows = rows
        self.places = places
        self.nowhere: Ints = np.bincount(places[owners == NOWHERE], minlength=len(rows))
        """By look: devices that no single node owns."""
        self._nodes = nodes
        self._owned = owners >= 0
        self._owners = owners[self._owned]
        self._counts: Floats | None = None
        """Devices of each look on each node, if there are few looks. Shape (looks, nodes)."""
        if len(rows) <= _FEW:
            counts = np.bincount(places[self._owned] * nodes + self._owners, minlength=len(rows) * nodes)
            self._counts = counts.reshape(len(rows), nodes).astype(np.float64)

    def by_node(self, values: Ints) -> Ints:
        """Return the sum for the devices of each node, exact below 2^53. `values`: by look. Shape (nodes,)."""
        if self._counts is not None:
            return (values @ self._counts).astype(np.int64)
        return np.bincount(self._owners, weights=values[self.places[self._owned]], minlength=self._nodes).astype(
            np.int64
        )


class DeviceStates(DerivedColumns):
    """`number`: by row of the device, of `DeviceColumns.states_of`. Shape (capacity,).

    `numbering` increases when states get other numbers.
    """

    def __init__(self, inventory: Inventory) -> None:
        super().__init__(inventory.devices.changes)
        self._devices, self._nodes = inventory.devices, inventory.nodes
        self._states: Interned[DeviceState] = Interned()
        self.number: Ints = np.zeros(0, dtype=np.int64)
        self.numbering = 0
        self._latest: tuple[tuple[int, int], Codes, Looks] | None = None
        """Version of the devices, codes, and what `looks` returned for them."""

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return len(self._states)

    def _grow(self) -> int:
        self.number = grown(self.number, len(self._devices.active))
        return self._devices.size

    def _update(self, rows: Positions, /) -> None:
        if len(self._states) > _MOST:
            self._states, self.numbering, rows = Interned(), self.numbering + 1, np.arange(self._devices.size)
        self.number[rows] = [self._states.number(each) for each in self._devices.states_of(rows)]

    def looks(self, codes: Codes) -> Looks:
        """Return the devices by state and code. `codes`: by row, for all rows.

        Requests that differ in amounts alone ask with the same codes.
        """
        known = self._latest
        version = self._devices.changes.version, self._nodes.size
        if known is None or known[0] != version or not np.array_equal(known[1], codes):
            known = self._latest = version, codes.copy(), self._looks(codes)
        return known[2]

    def _looks(self, codes: Codes) -> Looks:
        values = np.bincount(codes).nonzero()[0]
        place = np.zeros(int(values.max(initial=0)) + 1, dtype=np.int64)
        place[values] = np.arange(len(values))
        look = place[codes] * len(self) + self.number[: len(codes)]
        last = np.full(len(values) * len(self), -1, dtype=np.intp)
        last[look] = np.arange(len(codes))
        used = (last >= 0).nonzero()[0]
        rows = last[used]
        last[used] = np.arange(len(used))
        return Looks(rows, last[look], self._devices.node[: len(codes)], self._nodes.size)
