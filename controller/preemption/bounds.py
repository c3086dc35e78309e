"""What room on a node costs at least, from columns: so that few nodes have to be tried. Pure.

Kept up to date by difference: a pod that comes or goes changes its node and the devices of its claims.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from controller.allocation.errors import AllocatorError, SelectorOverBudget
from controller.allocation.ownership import Scope
from controller.allocation.prefilter import RequestColumns
from controller.allocation.resolved import ResolvedRequest
from controller.cluster.incremental.derived_column import LogReader
from controller.decide.pre_score import Wanted
from controller.decide.problems import inputs_of, requested_devices_of
from controller.decide.scheduling_request import Options, SchedulingRequest
from controller.inventory.columns import DeviceColumns
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from hami_dra.api.arrays import Bools, Floats, Positions
from hami_dra.vendors.registry import quotas_of

NO_VICTIM: Final = -math.inf
"""Highest priority of the victims where none is needed."""
NOT_ENOUGH: Final = math.inf
"""Where no victims are enough."""
UNKNOWN: Final = math.inf
"""Number of free devices where pods may share them."""


class Room(NamedTuple):
    """What the devices of one pod cost at least, by node. Shape (nodes.size,) each."""

    highest: Floats
    """Lower bound of the highest priority among the victims; `NO_VICTIM` or `NOT_ENOUGH`."""
    devices: Floats
    """Devices that must become free."""
    free: Floats
    """Devices that it could take now; `UNKNOWN` where it does not take them whole."""


class HeldDevices:
    """By row of the device: the lowest and the highest priority of the claims that hold it.

    A claim has the highest priority of its pods, because they leave together. Devices 0 and 1 are
    held by a claim of priority 5, device 1 by one of priority 90 as well:

        lowest   [5, 5]     highest  [5, 90]
    """

    def __init__(self) -> None:
        self._claims: dict[str, tuple[DeviceId, ...]] = {}
        """By key."""
        self._tenants: dict[DeviceId, dict[str, int]] = {}
        """Device → claim → priority."""
        self._changed: set[DeviceId] = set()
        self._structure: LogReader | None = None
        """Which devices were published since."""
        self._lowest: Floats = np.zeros(0)
        self._highest: Floats = np.zeros(0)

    def put(self, claim: str, devices: Sequence[DeviceId], priority: int) -> None:
        """Note what a claim holds; it replaces what was noted before."""
        for device in self._claims.pop(claim, ()):
            tenants = self._tenants[device]
            del tenants[claim]
            if not tenants:
                del self._tenants[device]
            self._changed.add(device)
        if devices:
            self._claims[claim] = tuple(devices)
        for device in devices:
            self._tenants.setdefault(device, {})[claim] = priority
            self._changed.add(device)

    def knows(self, claim: str) -> bool:
        return claim in self._claims

    def devices(self, claims: Iterable[str]) -> list[DeviceId]:
        return [device for claim in claims for device in self._claims.get(claim, ())]

    def number(self, claims: Iterable[str]) -> int:
        """Return how many devices the claims hold."""
        return len(self.devices(claims))

    def columns(self, devices: DeviceColumns) -> tuple[Floats, Floats]:
        """Return the lowest and the highest priority, by row; `NOT_ENOUGH` and `NO_VICTIM` where no claim is known."""
        if self._structure is None:
            self._structure = LogReader(devices.structure)
        published, size = self._structure.take(), devices.size
        if published is None:
            self._lowest, self._highest = np.full(size, NOT_ENOUGH), np.full(size, NO_VICTIM)
            self._changed = {*self._tenants}
        elif len(published):
            added = size - len(self._lowest)
            self._lowest = np.append(self._lowest, np.full(added, NOT_ENOUGH))
            self._highest = np.append(self._highest, np.full(added, NO_VICTIM))
            self._lowest[published], self._highest[published] = NOT_ENOUGH, NO_VICTIM
            there = [devices.devices[row] for row in published.tolist()]
            self._changed.update(device.id for device in there if device is not None)
        changed = [(row, device) for device in self._changed if (row := devices.row_of(device)) >= 0]
        bounds = [_bounds(self._tenants.get(device)) for _, device in changed]
        rows = [row for row, _ in changed]
        self._lowest[rows], self._highest[rows] = [low for low, _ in bounds], [high for _, high in bounds]
        self._changed.clear()
        return self._lowest, self._highest


def _bounds(priorities: Mapping[str, int] | None) -> tuple[float, float]:
    """Return the lowest and the highest priority of the claims that hold a device."""
    if not priorities:
        return NOT_ENOUGH, NO_VICTIM
    if len(priorities) == 1:
        (only,) = priorities.values()
        return only, only
    return min(priorities.values()), max(priorities.values())


def least_charge(inventory: Inventory, request: SchedulingRequest, options: Options) -> dict[str, int]:
    """Return what the devices of the pod count at least for quotas, whichever they are. Raises SliceSpent."""
    total = Counter[str]()
    for group, columns in _wanted(inventory, request, options):
        choices = [_least(inventory, *each) for each in zip(group.alternatives, columns, strict=True)]
        shared = set(choices[0]).intersection(*choices)
        total.update({resource: min(each[resource] for each in choices) for resource in shared})
    return dict(total)


def _least(inventory: Inventory, view: ResolvedRequest, column: RequestColumns) -> dict[str, int]:
    """Return the least amounts of one request: of the devices that could be given if they were idle."""
    devices, idle = inventory.devices, column.idle().codes == 0
    number = np.bincount(devices.kind[: devices.size][idle[: devices.size]])
    if view.admin_access or view.all_devices or not number.any():
        return {}
    found = []
    for kind in np.flatnonzero(number).tolist():
        sample = devices.kind_samples[kind]
        quotas = quotas_of(sample.id.driver)
        try:
            consumed = view.consumed(sample)
        except AllocatorError:
            return {}
        if quotas is None or consumed is None:
            return {}
        whole = not view.shared(sample) or quotas.is_whole(consumed, sample.totals)
        found.append(quotas.charge(consumed, whole=whole, model=sample.model))
    shared = set(found[0]).intersection(*found)
    return {resource: view.count * min(each[resource] for each in found) for resource in shared}


def room_for(inventory: Inventory, request: SchedulingRequest, options: Options, held: HeldDevices) -> Room:
    """Return what the devices of the pod cost at least. Raises SliceSpent."""
    size = inventory.nodes.size
    highest, devices, free = np.full(size, NO_VICTIM), np.zeros(size), np.full(size, UNKNOWN)
    for group, columns in _wanted(inventory, request, options):
        rooms = [_room(inventory, *each, held) for each in zip(group.alternatives, columns, strict=True)]
        highest = np.maximum(highest, np.minimum.reduce([each.highest for each in rooms]))
        devices = np.maximum(devices, np.minimum.reduce([each.devices for each in rooms]))
        free = np.minimum(free, np.maximum.reduce([each.free for each in rooms]))
    return Room(highest, devices, free)


def _wanted(inventory: Inventory, request: SchedulingRequest, options: Options) -> Wanted:
    """Return the requests with their columns; none where the search must report an error."""
    try:
        managed, _ = inputs_of(inventory, request, options)
        scope = Scope(options.managed, vendor_rules=not options.first_fit)
        return requested_devices_of(inventory, request, managed, scope)
    except (AllocatorError, SelectorOverBudget):
        return []


def _room(inventory: Inventory, view: ResolvedRequest, column: RequestColumns, held: HeldDevices) -> Room:
    """Return what one request costs at least.

    Two devices of three, of which one is free and the others are held by pods of priority 5 and 90,
    cost a victim of priority 5 and one device: the second of [`NO_VICTIM`, 5, 90].
    """
    size = inventory.nodes.size
    idle = column.idle()
    if view.admin_access or view.all_devices or idle.anywhere:
        return Room(np.full(size, NO_VICTIM), np.zeros(size), np.full(size, UNKNOWN))
    rows = idle.possible
    node, whole = inventory.devices.node[rows], _takes_whole(inventory, column, rows)
    cost = _costs(inventory, column, rows, whole, held)
    order = np.lexsort((cost, node))
    owners = np.arange(size)
    first, end = np.searchsorted(node[order], owners), np.searchsorted(node[order], owners, side="right")
    last = first + max(view.count, 1) - 1
    enough = last < end
    highest = np.full(size, NOT_ENOUGH)
    highest[enough] = cost[order[last[enough]]]
    free = np.bincount(node[cost == NO_VICTIM], minlength=size).astype(np.float64)
    divisible = np.bincount(node[~whole], minlength=size) > 0
    return Room(highest, np.maximum(max(view.count, 1) - free, 0), np.where(divisible, UNKNOWN, free))


def _takes_whole(inventory: Inventory, column: RequestColumns, rows: Positions) -> Bools:
    """Return whether the request leaves nothing of the device for others."""
    columns, ask = inventory.devices, column.ask(rows)
    whole: Bools = ~columns.shared[rows]
    for asked, total in ((ask.memory, columns.memory_total[rows]), (ask.cores, columns.cores_total[rows])):
        whole |= (asked >= total) & (total > 0)
    return whole & ~columns.divided[rows]


def _costs(inventory: Inventory, column: RequestColumns, rows: Positions, whole: Bools, held: HeldDevices) -> Floats:
    """Return the priority of a victim that each device needs at least: one tenant has to go, or all
    of them where the request takes the whole device.
    """
    columns = inventory.devices
    lowest, highest = held.columns(columns)
    # No victim frees a device without a known tenant, unless it is another part of the same card.
    cost = np.where(whole & (lowest[rows] < NOT_ENOUGH), highest[rows], lowest[rows])
    return np.where((column.codes[rows] == 0) | columns.divided[rows], NO_VICTIM, cost)
