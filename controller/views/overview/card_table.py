"""Classification of device rows: cards, parts of cards, cards that may be allocated, free cards.

Called by `packing` and `read`. Reads an inventory and changes nothing. Incremental: a table that is
kept evaluates only devices published again since its last refresh, so that metrics can be read
often. Otherwise whole arrays and no loop over rows. All arrays have shape (devices.size,).

- A part (MIG instance) is no card: what is held of it counts for the card with the same node,
  driver and index. A part whose card is not published counts as a card.
- Usable: no NoSchedule or NoExecute taint but the fence's, on a node that exists, is ready and not
  cordoned. A device that several nodes can reach depends on no node.
- Free: usable, and no claim holds any of it or of its parts. A card that is reserved (`reserved`) is
  usable only while something is held of it.
"""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from controller.cluster.incremental import LogReader, grown
from controller.inventory import NOWHERE, Device, DeviceId, Inventory
from controller.rules import NOT_READY_TAINT, UNREACHABLE_TAINT, UNSCHEDULABLE_TAINT, NodeColumn, effective_taints
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.api.core import Node
from hami_dra.api.resource import DeviceTaint
from hami_dra.vendors.registry import VENDORS, vendor_of

NO_CARD: Final = -1
_NOTHING: Final[Ints] = np.zeros(0, dtype=np.int64)
_KEEPING_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_ORDER: Final = {vendor.profile.driver: place for place, vendor in enumerate(VENDORS)}

READY, CORDONED, NOT_READY, ABSENT = range(4)
"""State of a node towards pods, by node row. The node's own taints do not count: card nodes often have one."""


class CardTable:
    """Call `refresh` first; the arrays describe the moment of the last refresh."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.drivers: list[str] = []
        """Driver names by number, in order of appearance."""
        self.cards: Positions = np.zeros(0, dtype=np.intp)
        """Rows of all cards, ascending."""
        self.usable: Bools = np.zeros(0, dtype=np.bool_)
        self.held: Bools = np.zeros(0, dtype=np.bool_)
        self.slots_used = self.cores_used = self.memory_used = self.parts_used = _NOTHING
        """Amounts used of each card, parts included."""
        self.node_states: Ints = _NOTHING
        """By node row."""
        self.reserved: Collection[DeviceId] = ()
        """What is held for units and not assumed in the inventory, as the leader does it."""
        self._driver_numbers: dict[str, int] = {}
        self._structure = LogReader(inventory.devices.structure)
        self._is_part: Bools = np.zeros(0, dtype=np.bool_)
        self._driver: Ints = _NOTHING
        self._island: Ints = _NOTHING
        self._parent: Ints = _NOTHING
        self._kinds: Bools = np.zeros(0, dtype=np.bool_)
        self._states = NodeColumn(inventory.nodes, _node_state, ABSENT)

    @property
    def driver(self) -> Ints:
        """Return the driver's number in `drivers` by row."""
        return self._driver[: self.inventory.devices.size]

    @property
    def island(self) -> Ints:
        """Return the island by row; 0: none."""
        return self._island[: self.inventory.devices.size]

    @property
    def parent(self) -> Ints:
        """Return the row of the card for each part, NO_CARD for all other rows."""
        return self._parent

    @property
    def free(self) -> Bools:
        return self.usable & ~self.held

    def node_name(self, row: int) -> str:
        """Return the node of a row's device; empty for a device that several nodes can reach."""
        node = int(self.inventory.devices.node[row])
        if node >= 0:
            return self.inventory.nodes.names[node]
        return "" if node == NOWHERE else self.inventory.devices.device(row).slice.spec.node_name or ""

    def ordered_drivers(self) -> list[int]:
        """Return the numbers of drivers with cards, ours in the order of the vendors, then others by name."""
        present = np.flatnonzero(np.bincount(self.driver[self.cards])).tolist()  # unique imports numpy.ma
        return sorted(present, key=lambda number: driver_rank(self.drivers[number]))

    def refresh(self) -> None:
        """Update all arrays to the present state of the inventory."""
        devices = self.inventory.devices
        size = devices.size
        self._follow()
        active, part = devices.active[:size], self._parent != NO_CARD
        self.node_states = self._states.current()
        self.cards = np.flatnonzero(active & ~part)
        self.usable = active & ~part & self._in_service() & self._on_serving_node()
        held = (
            devices.exclusive[:size]
            | (devices.slots_used[:size] > 0)
            | (devices.cores_used[:size] > 0)
            | (devices.memory_used[:size] > 0)
        )
        self.slots_used = devices.slots_used[:size].copy()
        self.cores_used = devices.cores_used[:size].copy()
        self.memory_used = devices.memory_used[:size].copy()
        self.parts_used = np.zeros(size, dtype=np.int64)
        rows = np.flatnonzero(part & held)
        if len(rows):
            cards = self._parent[rows]
            np.add.at(self.parts_used, cards, 1)
            np.add.at(self.slots_used, cards, devices.slots_used[rows])
            np.add.at(self.cores_used, cards, devices.cores_used[rows])
            np.add.at(self.memory_used, cards, devices.memory_used[rows])
        # what is reserved for a unit counts on top of the pods that are still there
        for used, total in (
            (self.slots_used, devices.slots_total),
            (self.cores_used, devices.cores_total),
            (self.memory_used, devices.memory_total),
        ):
            np.minimum(used, total[:size], out=used, where=total[:size] > 0)
        # `blocked`: other claims draw on the counters of the card
        self.held = active & ~part & (held | (self.parts_used > 0) | devices.blocked[:size])
        for device in self.reserved:
            if (row := devices.row_of(device)) >= 0:
                card = row if self._parent[row] == NO_CARD else self._parent[row]
                self.usable[card] &= self.held[card]

    # -- internals -------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Update what depends on published devices alone."""
        devices = self.inventory.devices
        if self._structure.is_current:
            return
        changed = self._structure.take()
        length = len(devices.active)
        if len(self._driver) < length:
            self._is_part = grown(self._is_part, length)
            self._driver = grown(self._driver, length)
            self._island = grown(self._island, length)
        for row in range(devices.size) if changed is None else changed.tolist():
            device = devices.devices[row]
            if device is not None:
                self._is_part[row] = device.is_part
                self._driver[row] = self._number(device.id.driver)
                self._island[row] = max(device.int_attribute(device.profile.link_group, 0), 0)
        self._parent = self._parents()

    def _number(self, driver: str) -> int:
        number = self._driver_numbers.setdefault(driver, len(self.drivers))
        if number == len(self.drivers):
            self.drivers.append(driver)
        return number

    def _parents(self) -> Ints:
        devices = self.inventory.devices
        size = devices.size
        parents = np.full(size, NO_CARD, dtype=np.int64)
        rows = np.flatnonzero(devices.active[:size])
        part = self._is_part[rows]
        if not part.any():
            return parents
        # One number for node and driver, one for each index that occurs: together they identify a
        # card.
        node = self._places(rows)
        place = (node - node.min()) * len(self.drivers) + self._driver[rows]
        indices, index = np.unique(devices.index[rows], return_inverse=True)
        keys = place * len(indices) + index
        cards, card_keys = rows[~part], keys[~part]
        if not len(cards):
            return parents
        order = np.argsort(card_keys, kind="stable")
        found = np.minimum(np.searchsorted(card_keys, keys[part], sorter=order), len(order) - 1)
        match = card_keys[order[found]] == keys[part]
        parents[rows[part][match]] = cards[order[found[match]]]
        return parents

    def _places(self, rows: Ints) -> Ints:
        """Return a number for the node of each row; for its pool where no Node, or several, are known."""
        devices = self.inventory.devices
        places = devices.node[rows].astype(np.int64)
        pools: dict[str, int] = {}
        for position in np.flatnonzero(places < 0).tolist():
            device = devices.device(int(rows[position]))
            places[position] = -1 - pools.setdefault(device.id.pool, len(pools))
        return places

    def _in_service(self) -> Bools:
        devices = self.inventory.devices
        known = devices.taint_samples
        if len(self._kinds) < len(known):
            fresh = [sample is None or not any(map(keeps_away, sample.taints)) for sample in known[len(self._kinds) :]]
            self._kinds = np.concatenate([self._kinds, np.array(fresh, dtype=np.bool_)])
        serves: Bools = self._kinds[devices.taint_kind[: devices.size]]
        return serves

    def _on_serving_node(self) -> Bools:
        node = self.inventory.devices.node[: self.inventory.devices.size]
        serves: Bools = node == NOWHERE
        if len(self.node_states):
            serves |= (node >= 0) & (self.node_states[np.maximum(node, 0)] == READY)
        return serves


def keeps_away(taint: DeviceTaint) -> bool:
    """Return whether the taint keeps all pods away. The fence keeps only kube-scheduler away."""
    return taint.effect in _KEEPING_AWAY and taint.key != names.FENCE_TAINT


def driver_rank(driver: str) -> tuple[int, str]:
    """Return a sort key: our drivers in the order of the vendors, then the others by name."""
    return _ORDER.get(driver, len(_ORDER)), driver


def vendor_name(driver: str) -> str:
    vendor = vendor_of(driver)
    return vendor.name if vendor is not None else driver


def troubles(device: Device) -> tuple[bool, Sequence[str]]:
    """Return whether an operator cordoned the device, and its other taints as text (`xid=xid-79`)."""
    taints = [taint for taint in device.taints if keeps_away(taint)]
    others = [taint for taint in taints if taint.key != names.CORDON_TAINT]
    return len(others) < len(taints), [_text(taint) for taint in others]


def _text(taint: DeviceTaint) -> str:
    key = taint.key.removeprefix(f"{names.DOMAIN}/")
    return f"{key}={taint.value}" if taint.value else key


def _node_state(node: Node) -> int:
    keys = {taint.key for taint in effective_taints(node)}
    if keys & {NOT_READY_TAINT.key, UNREACHABLE_TAINT.key}:
        return NOT_READY
    return CORDONED if UNSCHEDULABLE_TAINT.key in keys else READY
