"""Shared counters of one pool: its devices that are unavailable because others have drawn the
counters they need.

Updated by `Inventory` for pools of a single node that have counters, so that the prefilter does not
send every decision to nodes whose cards are partitioned already. In: the pool, and the held
devices. Out: yes or no per device. Must never call a device blocked that the search
(`allocation.counters`) would take.
"""

from collections.abc import Collection, Iterable

from controller.inventory.model import Amount, Device, DeviceId, Pool, amount_of
from hami_dra.api.quantity import InvalidQuantity, Quantity

_Counter = tuple[str, str]
"""(counter set, counter)"""


class SharedCounters:
    """The counters of one pool; created by `shared_counters`.

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
