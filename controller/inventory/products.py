"""Which products the devices of the cluster are, as a column: for messages that say what there is.

Read by `controller.decide` where a pod is refused. Updated for the devices that were
published again. Pure.
"""

import numpy as np

from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.growth import Interned, grown
from controller.inventory.columns import DeviceColumns
from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.printable import printable

_NAMED = 6
"""Products in one message."""


class Products(DerivedColumns):
    """The product of each device; a device without one counts by its driver."""

    def __init__(self, columns: DeviceColumns) -> None:
        super().__init__(columns.structure)
        self._columns = columns
        self._names: list[str] = []
        self._known = Interned[str]()
        self._numbers: Ints = np.zeros(0, dtype=np.int64)

    def of(self, row: int) -> str:
        self.refresh()
        return self._names[int(self._numbers[row])]

    def groups(self, rows: Positions) -> dict[str, Positions]:
        """Return some devices by product, by name."""
        self.refresh()
        numbers = self._numbers[rows]
        found = {self._names[number]: rows[numbers == number] for number in np.unique(numbers).tolist()}
        return dict(sorted(found.items()))

    def counted(self, rows: Positions) -> str:
        """Return `NVIDIA A10G (4), Tesla T4 (4)` for some devices, by name."""
        self.refresh()
        counts = np.bincount(self._numbers[rows], minlength=len(self._names))
        found = sorted((self._names[number], int(counts[number])) for number in np.flatnonzero(counts).tolist())
        texts = [f"{name} ({count})" for name, count in found[:_NAMED]]
        more = [f"{len(found) - _NAMED} more products"] if len(found) > _NAMED else []
        return ", ".join([*texts, *more])

    def _grow(self) -> int:
        if len(self._numbers) < self._columns.size:
            self._numbers = grown(self._numbers, len(self._columns.active))
        return self._columns.size

    def _update(self, rows: Positions, /) -> None:
        for row in rows.tolist():
            device = self._columns.devices[row]
            if device is not None:
                name = device.string_attribute(device.profile.product) or f"device of {device.id.driver}"
                self._numbers[row] = number = self._known.number(name)
                if number == len(self._names):
                    self._names.append(printable(name))


def products_of(inventory: Inventory) -> Products:
    return inventory.derived(Products, lambda each: Products(each.devices))
