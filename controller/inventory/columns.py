"""The cluster as numpy columns: one row per usable device, one row per node. Written by the
inventory only.

A row stays the same while its object lives; freed rows are reused. Devices that no single node owns
(network-attached) have node NOWHERE. Columns hold the data of whole-cluster arithmetic; everything
else is on the `Device` object of the row.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np

from controller.cluster.incremental.changes import ChangeLog
from controller.cluster.incremental.growth import Interned, grown
from controller.inventory.model import Device, DeviceId
from controller.inventory.roles import Amounts, totals_of
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.vendors.protocol import Cards

NOWHERE: Final = -1
"""Node of a device that several nodes may reach."""
UNSEEN: Final = -2
"""Node of a device whose Node object is missing."""
_FIRST_SIZE: Final = 64
DeviceState = tuple[int, ...]


class DeviceColumns:
    """Columns of shape (capacity,), dtype int64 unless said otherwise; only the first `size` rows
    are or were in use.

    `active` bool. `exclusive` bool: wholly held by an exclusive allocation. `shared` bool: may be
    held by several. `blocked` bool: idle, but others have drawn the shared counters that it needs.
    `divided` bool: draws on shared counters, or is a part of a card. `kind`: number of the capacity
    kind (`Device.capacity_kind`), `taint_kind`: of the set of taints, 0 = none.

    The int64 columns are the lines of one table, `_block`, and attributes such as `memory_used` are
    views of its lines (set by `_allocate`): reading several columns of some rows is then one
    indexing operation.
    """

    def __init__(self) -> None:
        self.size = 0
        self.devices: list[Device | None] = []
        self.changes = ChangeLog()
        """Rows whose usage or device changed."""
        self.structure = ChangeLog()
        """Rows whose device changed."""
        self.kinds = Interned[Hashable]()
        self.taint_kinds = Interned[Hashable]()
        self.taint_kinds.number(())
        self.kind_samples: list[Device] = []
        """By number of the kind: one device of it."""
        self._kind_totals: list[Amounts] = []
        """By number of the kind; equal, because devices of a driver have one profile."""
        self.taint_samples: list[Device | None] = [None]
        """By number of the taint kind: a device with these taints, a copy, because those of devices
        in the columns change.
        """
        self._rows: dict[DeviceId, int] = {}
        self._free: list[int] = []
        self._block: Ints = np.zeros((len(_INTS), 0), dtype=np.int64)
        self.active: Bools = np.zeros(0, dtype=np.bool_)
        self.exclusive = self.shared = self.blocked = self.divided = self.active
        self._allocate(_FIRST_SIZE)

    def _allocate(self, length: int) -> None:
        self.active, self.exclusive = grown(self.active, length), grown(self.exclusive, length)
        self.shared, self.blocked = grown(self.shared, length), grown(self.blocked, length)
        self.divided = grown(self.divided, length)
        block = np.zeros((len(_INTS), length), dtype=np.int64)
        block[:, : self._block.shape[1]] = self._block
        self._block = block
        for number, name in enumerate(_INTS):
            setattr(self, name, block[number])

    node: Ints
    index: Ints
    numa: Ints
    kind: Ints
    taint_kind: Ints
    slots_total: Ints
    slots_used: Ints
    cores_total: Ints
    cores_used: Ints
    memory_total: Ints
    memory_used: Ints
    mark: Ints

    def row_of(self, device: DeviceId) -> int:
        """Return the row, or -1 if the device is not in the columns."""
        return self._rows.get(device, -1)

    def device(self, row: int) -> Device:
        found = self.devices[row]
        if found is None:
            raise IndexError(f"row {row} is free")
        return found

    def add(self, device: Device, node: int, used: Amounts, *, exclusive: bool, mark: int = 0) -> int:
        """Give the device a row, and return it. A device of the same id is replaced in its row."""
        row = self._rows.get(device.id, -1)
        if row < 0:
            row = self._free.pop() if self._free else self._next_row()
            self._rows[device.id] = row
        device.row = row
        self.devices[row] = device
        self.active[row] = True
        self.node[row] = node
        self.shared[row] = device.shared
        self.blocked[row] = False
        self.divided[row] = bool(device.spec.consumes_counters) or device.is_part
        self.index[row] = device.index
        self.numa[row] = device.traits.wiring.numa
        self.kind[row] = kind = self.kinds.number(device.capacity_kind)
        if kind == len(self.kind_samples):
            self.kind_samples.append(device)
            self._kind_totals.append(totals_of(device))
        self.slots_total[row], self.cores_total[row], self.memory_total[row] = self._kind_totals[kind]
        self.taint_kind[row] = self._taint_kind(device)
        self.set_usage(row, used, exclusive=exclusive, mark=mark)
        self.structure.add(row)
        return row

    def is_current(self, row: int, device: Device, node: int) -> bool:
        """Return whether adding the device would change nothing but its usage."""
        return (
            self.devices[row] is device
            and int(self.node[row]) == node
            and int(self.taint_kind[row]) == self._taint_kind(device)
        )

    def remove(self, device: DeviceId) -> None:
        row = self._rows.pop(device, -1)
        if row < 0:
            return
        found = self.devices[row]
        if found is not None:
            found.row = -1
        self.devices[row] = None
        self.active[row] = False
        self.blocked[row] = False
        self.node[row] = UNSEEN
        self._free.append(row)
        self.structure.add(row)
        self.changes.add(row)

    def move(self, row: int, node: int) -> None:
        """Record that the node of the device came or went; the caller updates the sums."""
        self.node[row] = node
        self.structure.add(row)
        self.changes.add(row)

    def set_usage(self, row: int, used: Amounts, *, exclusive: bool, mark: int = 0) -> None:
        """Set the usage of a row. `mark`: sharing class of its tenants (`Vendor.mark`)."""
        self.slots_used[row], self.cores_used[row], self.memory_used[row] = used
        self.exclusive[row] = exclusive
        self.mark[row] = mark
        self.changes.add(row)

    def set_blocked(self, row: int, *, blocked: bool) -> None:
        if bool(self.blocked[row]) is not blocked:
            self.blocked[row] = blocked
            self.changes.add(row)

    def totals(self, row: int) -> Amounts:
        return self._kind_totals[int(self.kind[row])]

    def used(self, row: int) -> Amounts:
        return int(self.slots_used[row]), int(self.cores_used[row]), int(self.memory_used[row])

    def states_of(self, rows: Positions) -> Iterable[DeviceState]:
        """Yield the whole state of each of some rows: rows of equal states are interchangeable for all
        who read no more than this.
        """
        return zip(
            self.exclusive[rows].tolist(),
            self.blocked[rows].tolist(),
            *self._block[_STATES, rows].tolist(),
            strict=True,
        )

    def cards(self, rows: Positions) -> Cards:
        """Return copies of some rows, by role."""
        return Cards(*self._block[_CARDS, rows])

    def states(self, rows: Positions) -> Ints:
        """Return kind and usage of some rows: everything that `cards` and a request's amounts
        depend on. Shape (columns, n).
        """
        return self._block[_STATES, rows]

    def _taint_kind(self, device: Device) -> int:
        """Return the number of the set of taints. When a taint was added makes no difference."""
        if not device.spec.taints and not device.extra_taints:
            return 0
        number = self.taint_kinds.number(tuple((taint.key, taint.value, taint.effect) for taint in device.taints))
        if number == len(self.taint_samples):
            self.taint_samples.append(dataclasses.replace(device, row=-1))
        return number

    def _next_row(self) -> int:
        if self.size == len(self.active):
            self._allocate(2 * self.size)
        self.devices.append(None)
        self.size += 1
        return self.size - 1


def rows_of(devices: Sequence[Device]) -> Positions:
    return np.fromiter((device.row for device in devices), dtype=np.intp, count=len(devices))


_INTS: Final = ("node", "taint_kind", "kind", *Cards.__struct_fields__)
"""The lines of the block: columns that are read together are adjacent."""
_STATES: Final = slice(_INTS.index("kind"), None)
_CARDS: Final = slice(_INTS.index("kind") + 1, None)
