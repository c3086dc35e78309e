"""Rows of devices by the node that owns them, for tables that are laid out again node by node.

Used by `card_grid` and `layouts`. Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, KeysView

from controller.inventory.columns import DeviceColumns
from controller.inventory.model import Device
from hami_dra.api.arrays import Positions


class RowsOfNodes:
    """The rows of each node. `wanted`: which devices count.

    Device 7 moves from node 1 to node 2, and device 8, which no node owns, appears:

        before         {1: {5, 7}}
        moved([7, 8])  returns {1, 2}
        after          {1: {5}, 2: {7}}
    """

    def __init__(self, devices: DeviceColumns, wanted: Callable[[Device], bool] = lambda _: True) -> None:
        self._devices = devices
        self._wanted = wanted
        self._rows: defaultdict[int, set[int]] = defaultdict(set)
        self._node: dict[int, int] = {}
        """By row of a device, as counted in `_rows`."""

    def of(self, node: int) -> Collection[int]:
        return self._rows[node]

    def nodes(self) -> KeysView[int]:
        return self._rows.keys()

    def moved(self, rows: Positions) -> set[int]:
        """Record the devices in these rows as they are now. Returns the nodes where something changed."""
        columns, devices = self._devices, self._devices.devices
        touched: set[int] = set()
        for row, node in zip(rows.tolist(), columns.node[rows].tolist(), strict=True):
            before = self._node.pop(row, None)
            if before is not None:
                self._rows[before].discard(row)
                touched.add(before)
            device = devices[row]
            if device is not None and node >= 0 and self._wanted(device):
                self._node[row] = node
                self._rows[node].add(row)
                touched.add(node)
        return touched
