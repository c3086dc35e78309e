"""Usage as the columns show it: rows of devices, sums of nodes, and what shared counters block.

Called by `Inventory` when devices are published or removed, and when the ledger's usage of some has
changed. Writes the columns of devices and the scores of nodes; reads the ledger.
"""

from collections.abc import Collection, Iterable

from controller.cluster.nodes.nodes import NodeColumns
from controller.inventory.columns import DeviceColumns
from controller.inventory.ledger import Ledger
from controller.inventory.model import Amount, Device, DeviceId, Pool, amount_of
from controller.inventory.pools import PoolKey
from controller.inventory.quotas import QuotaBook
from controller.inventory.roles import Amounts, used_of
from hami_dra.api.quantity import InvalidQuantity, Quantity

_Counter = tuple[str, str]
"""(counter set, counter)"""


class SharedCounters:
    """The counters of a pool of one node; created by `shared_counters`. Must never call a device blocked
    that the search (`allocation.counters`) would take.

    A card of 8 slices, published whole (8) and as two parts (4 each): once a part is held, 4 are
    left. Then the other part is available and the whole card is blocked; the held part itself is
    not, it has paid.
    """

    def __init__(self, pool: Pool) -> None:
        """Raises InvalidQuantity."""
        self._left: dict[_Counter, Amount] = {
            (each.name, name): amount_of(Quantity.parse(str(counter.value)))
            for each in pool.counter_sets.values()
            for name, counter in each.counters.items()
        }
        self._draws = {device.id: _draws(device) for device in pool.devices if device.spec.consumes_counters}
        self._members: dict[str, set[DeviceId]] = {}
        for device_id, draws in self._draws.items():
            for counter_set, _ in draws:
                self._members.setdefault(counter_set, set()).add(device_id)
        self._holding: set[DeviceId] = set()

    def hold(self, device: DeviceId, *, held: bool) -> Collection[DeviceId]:
        """Record whether the device is held. Returns the devices for which that may make a difference."""
        draws = self._draws.get(device)
        if draws is None or held is (device in self._holding):
            return ()
        (self._holding.add if held else self._holding.discard)(device)
        for counter, amount in draws.items():
            if counter in self._left:
                self._left[counter] += -amount if held else amount
        return set[DeviceId]().union(*(self._members[name] for name, _ in draws))

    def overdrawn(self) -> list[str]:
        """Return each overdrawn `set/counter`: other rules than these allocated the devices that are held."""
        return [f"{counter_set}/{name}" for (counter_set, name), left in sorted(self._left.items()) if left < 0]

    def blocked(self, device: DeviceId) -> bool:
        """Return whether the device is not held and needs more than its counters have left. A held
        device has paid already.
        """
        draws = self._draws.get(device)
        if draws is None or device in self._holding:
            return False
        return any(amount > self._left.get(counter, 0) for counter, amount in draws.items())


def shared_counters(pool: Pool, held: Iterable[DeviceId]) -> SharedCounters | None:
    """Return the counters; None if there are none, devices are on other nodes, or the search will
    report invalid amounts.
    """
    if not pool.counter_sets or pool.elsewhere:
        return None
    try:
        counters = SharedCounters(pool)
    except InvalidQuantity:
        return None
    for device_id in held:
        counters.hold(device_id, held=True)
    return counters


def _draws(device: Device) -> dict[_Counter, Amount]:
    sums: dict[_Counter, Amount] = {}
    for entry in device.spec.consumes_counters:
        for name, counter in entry.counters.items():
            key = entry.counter_set, name
            sums[key] = sums.get(key, 0) + amount_of(Quantity.parse(str(counter.value)))
    return sums


_NONE: Amounts = (0, 0, 0)


class UsageColumns:
    """Keeps three things in step with the ledger:

    - the row of a device: (slots, cores, memory) used, whether all of it is held, the sharing class
      of its tenants;
    - `nodes.scores`: the sums of the rows of each node, without parts of cards in the totals;
    - `blocked`: devices whose shared counters others have drawn.

    A pod takes 4 of the 16 GiB of a device of node 3: the row becomes (1, 0, 4 GiB), and
    (1, 0, 4 GiB) is added to the sums of node 3.
    """

    def __init__(self, devices: DeviceColumns, nodes: NodeColumns, ledger: Ledger, quotas: QuotaBook) -> None:
        self._devices = devices
        self._nodes = nodes
        self._ledger = ledger
        self._quotas = quotas
        self._counters: dict[PoolKey, SharedCounters] = {}

    # -- rows --------------------------------------------------------------------------------------

    def put(self, device: Device, node: int) -> None:
        """Add the row of a device of a node, or replace it where it differs. `node`: as `DeviceColumns.node`."""
        row = self._devices.row_of(device.id)
        if row >= 0:
            if self._devices.is_current(row, device, node):
                return
            self._add_to_node(row, self._devices.used(row), -1)
        used, exclusive, mark = self._used(device)
        self._add_to_node(self._devices.add(device, node, used, exclusive=exclusive, mark=mark), used, +1)
        self._quotas.device_published(device)

    def remove(self, device: DeviceId) -> None:
        row = self._devices.row_of(device)
        if row >= 0:
            self._add_to_node(row, self._devices.used(row), -1)
            self._devices.remove(device)

    def recount(self, devices: Iterable[DeviceId]) -> None:
        """Update devices of which the ledger's usage has changed; unpublished ones have no row."""
        columns, changed = self._devices, dict[int, list[int]]()
        for device_id in devices:
            self._draw(device_id)
            row = columns.row_of(device_id)
            if row < 0:
                continue
            used, exclusive, mark = self._used(columns.device(row))
            before = columns.used(row)
            columns.set_usage(row, used, exclusive=exclusive, mark=mark)
            node = columns.node.item(row)
            if node >= 0:
                change = changed.setdefault(node, [0, 0, 0])
                for role in range(3):
                    change[role] += used[role] - before[role]
        for node, (slots, cores, memory) in changed.items():
            self._nodes.scores.add(node, _NONE, (slots, cores, memory))

    def _used(self, device: Device) -> tuple[Amounts, bool, int]:
        """Return amounts, whether all of it is held, and the sharing class of its tenants."""
        use = self._ledger.use_of(device.id)
        if use is None:
            return _NONE, False, 0
        exclusive = use.exclusive > 0
        return used_of(device, use.shares, use.consumed, exclusive=exclusive), exclusive, use.mark

    def _add_to_node(self, row: int, used: Amounts, sign: int) -> None:
        """Add a row to the sums of its node (`sign` 1), or subtract it (-1). `used`: its usage."""
        node = int(self._devices.node[row])
        if node >= 0:
            total = self._devices.totals(row)
            if self._devices.device(row).is_part:
                total = _NONE  # the card that it is cut from counts already
            self._nodes.scores.add(
                node,
                (sign * total[0], sign * total[1], sign * total[2]),
                (sign * used[0], sign * used[1], sign * used[2]),
            )

    # -- shared counters ---------------------------------------------------------------------------

    def overdrawn(self) -> dict[PoolKey, list[str]]:
        """Return pools with overdrawn shared counters, by key: a card, and parts of it (MIG), at once."""
        drawn = {key: counters.overdrawn() for key, counters in sorted(self._counters.items())}
        return {key: names for key, names in drawn.items() if names}

    def recount_counters(self, key: PoolKey, pool: Pool | None, devices: Iterable[Device]) -> None:
        """Compute the counters of a pool that was built again, and mark its `devices` with new
        rows.

        `pool` None: it has no counters to keep, as its devices are gone or belong to several nodes.
        """
        counters = None
        if pool is not None:
            counters = shared_counters(pool, (device.id for device in pool.devices if self._is_held(device.id)))
        before = self._counters.pop(key, None)
        if counters is not None:
            self._counters[key] = counters
        if counters is not None or before is not None:  # else nothing is blocked
            self.mark_blocked(key, devices)

    def mark_blocked(self, key: PoolKey, devices: Iterable[Device]) -> None:
        """Write the column `blocked` of the pool's devices that have new rows."""
        counters = self._counters.get(key)
        for device in devices:
            blocked = counters is not None and counters.blocked(device.id)
            self._devices.set_blocked(self._devices.row_of(device.id), blocked=blocked)

    def _draw(self, device: DeviceId) -> None:
        """Update the counters of the pool after a device was taken or released."""
        counters = self._counters.get((device.driver, device.pool))
        if counters is not None:
            for other in counters.hold(device, held=self._is_held(device)):
                row = self._devices.row_of(other)
                if row >= 0:
                    self._devices.set_blocked(row, blocked=counters.blocked(other))

    def _is_held(self, device: DeviceId) -> bool:
        use = self._ledger.use_of(device)
        return use is not None and not use.nothing
