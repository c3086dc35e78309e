"""A number for the state of each device: devices with equal numbers are interchangeable for a request.

One column for all requests, so that each judges a state once, and not thousands of devices in it.
"""

from typing import Final

import numpy as np

from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.growth import Interned, grown
from controller.inventory.columns import DeviceState
from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Codes, Ints, Positions

_MOST: Final = 1 << 15
"""States that are kept, those that no device has any more included."""


class DeviceStates(DerivedColumns):
    """`number`: by row of the device, of `DeviceColumns.states_of`. Shape (capacity,).

    `numbering` increases when states get other numbers.
    """

    def __init__(self, inventory: Inventory) -> None:
        super().__init__(inventory.devices.changes)
        self._devices = inventory.devices
        self._states: Interned[DeviceState] = Interned()
        self.number: Ints = np.zeros(0, dtype=np.int64)
        self.numbering = 0
        self._latest: tuple[int, Codes, tuple[Positions, Positions]] | None = None
        """The latest answer of `alike`: version of the log, codes, answer."""

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

    def alike(self, codes: Codes) -> tuple[Positions, Positions]:
        """Return `alike_among` all rows. Requests that differ in amounts alone ask with the same codes."""
        version = self._devices.changes.version
        if self._latest is None or self._latest[0] != version or not np.array_equal(self._latest[1], codes):
            self._latest = version, codes.copy(), self.alike_among(np.arange(len(codes)), codes)
        return self._latest[2]

    def alike_among(self, rows: Positions, codes: Codes | None = None) -> tuple[Positions, Positions]:
        """Return one row of each state, and for each row the place of its own state among them.

        `codes`: of the rows, that have to be equal, too. Four rows, of which the last two are alike:

            number  [0, 0, 1, 1]
            codes   [7, 0, 0, 0]    ->  rows [1, 3, 0],  places [2, 0, 1, 1]
        """
        numbers, most = self.number[rows], len(self)
        if codes is not None:
            values = np.bincount(codes).nonzero()[0]
            if len(values) > 1:
                place = np.zeros(values[-1] + 1, dtype=np.int64)
                place[values] = np.arange(len(values))
                numbers = place[codes] * most + numbers
                most *= len(values)
        last = np.full(most, -1, dtype=np.intp)
        last[numbers] = np.arange(len(rows))
        used = (last >= 0).nonzero()[0]
        different = rows[last[used]]
        last[used] = np.arange(len(used))
        return different, last[numbers]
