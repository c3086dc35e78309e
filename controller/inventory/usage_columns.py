"""Usage as the columns show it: rows of devices, sums of nodes, and what shared counters block.

Called by `Inventory` when devices are published or removed, and when the ledger's usage of some has
changed. Writes the columns of devices and the scores of nodes; reads the ledger.
"""

from collections.abc import Iterable

from controller.cluster.nodes.nodes import NodeColumns
from controller.inventory.columns import DeviceColumns
from controller.inventory.ledger import Ledger
from controller.inventory.model import Device, DeviceId, Pool
from controller.inventory.pools import PoolKey
from controller.inventory.quotas import QuotaBook
from controller.inventory.roles import Amounts, used_of
from controller.inventory.shared_counters import SharedCounters, shared_counters

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
