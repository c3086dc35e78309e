"""Shared counters of one pool: which of its devices cannot be had now, because others have drawn what they need.

Kept by `Inventory` for pools of a single node that have counters, so that the prefilter does not send every decision to
nodes whose cards are cut up already. In: the pool, and who holds devices. Out: yes or no per device. Must never call a device
blocked that the search (`allocation.counters`) would take.
"""

from collections.abc import Collection, Iterable

from controller.scheduling.inventory.model import Amount, Device, DeviceId, Pool, amount_of
from hami_dra.api.quantity import InvalidQuantity, Quantity

_Counter = tuple[str, str]
"""(counter set, counter)"""


class SharedCounters:
    """Made by `shared_counters`."""

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
        """Somebody holds the device, or nobody does any more. Returns those for which that may make a difference."""
        draws = self._draws.get(device)
        if draws is None or held is (device in self._holding):
            return ()
        (self._holding.add if held else self._holding.discard)(device)
        for counter, amount in draws.items():
            if counter in self._left:
                self._left[counter] += -amount if held else amount
        return set[DeviceId]().union(*(self._members[name] for name, _ in draws))

    def overdrawn(self) -> list[str]:
        """`set/counter` of which more is drawn than there is: what is held was not allocated by these rules."""
        return [f"{counter_set}/{name}" for (counter_set, name), left in sorted(self._left.items()) if left < 0]

    def blocked(self, device: DeviceId) -> bool:
        """It is not held, and its counters have less left than it needs. A device that is held has paid already."""
        draws = self._draws.get(device)
        if draws is None or device in self._holding:
            return False
        return any(amount > self._left.get(counter, 0) for counter, amount in draws.items())


def shared_counters(pool: Pool, held: Iterable[DeviceId]) -> SharedCounters | None:
    """None where there is nothing to know: no counters, devices on other nodes, or amounts that the search will complain of."""
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
