"""Shared counters of partitionable devices, and the compatibility groups that go with them.

Called by the search for devices that consume counters. In: pools with their counter sets, the ledger. Out: yes or no, with
the counters taken until they are given back. Rules: upstream's checkAvailableCounters and compatibility_groups.go.
"""

from weakref import WeakKeyDictionary

from controller.scheduling.allocation.errors import AllocatorError
from controller.scheduling.inventory.model import Amount, Device, Pool, Usage, amount_of
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import Counter

CounterName = tuple[str, str]
"""(counter set, counter)."""
Groups = frozenset[str] | None
"""The compatibility groups that all devices on a counter set have in common; None: none of them declares any."""

_CONSUMPTION: WeakKeyDictionary[Device, tuple[tuple[CounterName, Amount], ...]] = WeakKeyDictionary()


def consumption(device: Device) -> tuple[tuple[CounterName, Amount], ...]:
    """What the device takes of the counters of its pool, once however many share it. Raises AllocatorError."""
    found = _CONSUMPTION.get(device)
    if found is None:
        sums: dict[CounterName, Amount] = {}
        for entry in device.spec.consumes_counters:
            for name, counter in entry.counters.items():
                key = (entry.counter_set, name)
                sums[key] = sums.get(key, 0) + _amount(counter, f"device {device.id}: consumesCounters: {name}")
        found = _CONSUMPTION[device] = tuple(sums.items())
    return found


def declared_groups(device: Device) -> tuple[tuple[str, Groups], ...]:
    """(counter set, groups) for every counter set of the device."""
    return tuple(
        (entry.counter_set, frozenset(entry.compatibility_groups) or None) for entry in device.spec.consumes_counters
    )


class Counters:
    """Of all pools of one node. What is left is worked out once per pool, when first asked."""

    def __init__(self, usage: Usage, *, groups: bool) -> None:
        """`groups`: compatibility groups are enforced (DRADeviceCompatibilityGroups)."""
        self._usage = usage
        self._enforce_groups = groups
        self._pools: dict[tuple[str, str], _PoolCounters] = {}

    def take(self, pool: Pool, device: Device) -> bool:
        """False, and nothing taken, where a counter or the groups of the devices beside it do not allow the device.

        Raises AllocatorError: a counter that is no quantity.
        """
        counters = self._of(pool)
        if self._enforce_groups and not counters.admits(device):
            return False
        if not counters.take(device):
            return False
        counters.join(device)
        return True

    def release(self, pool: Pool, device: Device) -> None:
        """Take back the latest `take`."""
        counters = self._of(pool)
        counters.leave(device)
        counters.release(device)

    def _of(self, pool: Pool) -> "_PoolCounters":
        key = (pool.driver, pool.name)
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = _PoolCounters(pool, self._usage)
        return found


class _PoolCounters:
    def __init__(self, pool: Pool, usage: Usage) -> None:
        self._left: dict[CounterName, Amount] = {
            (counter_set.name, name): _amount(
                counter, f"pool {pool.driver}/{pool.name}: sharedCounters: {counter_set.name}.{name}"
            )
            for counter_set in pool.counter_sets.values()
            for name, counter in counter_set.counters.items()
        }
        # per counter set what the devices on it have in common, after each device that joined
        self._groups: dict[str, list[Groups]] = {}
        for device in (*pool.devices, *pool.elsewhere):
            if device.spec.consumes_counters and _allocated(device, usage):
                self.release(device, sign=-1)
                self.join(device)
        # An overdrawn counter (its set shrank, or somebody else over-allocated) blocks every device with counters.
        self._overdrawn = any(left < 0 for left in self._left.values())

    def take(self, device: Device) -> bool:
        if self._overdrawn or any(amount > self._left.get(name, 0) for name, amount in consumption(device)):
            return False
        self.release(device, sign=-1)
        return True

    def release(self, device: Device, *, sign: int = 1) -> None:
        for name, amount in consumption(device):
            if name in self._left:
                self._left[name] += sign * amount

    def admits(self, device: Device) -> bool:
        """Devices on one counter set have a group in common, or none of them has any."""
        for counter_set, groups in declared_groups(device):
            history = self._groups.get(counter_set)
            if history:
                common = history[-1]
                if common is None or groups is None:
                    if common is not groups:
                        return False
                elif not common & groups:
                    return False
        return True

    def join(self, device: Device) -> None:
        for counter_set, groups in declared_groups(device):
            history = self._groups.setdefault(counter_set, [])
            history.append(_in_common(history[-1], groups) if history else groups)

    def leave(self, device: Device) -> None:
        for counter_set, _ in declared_groups(device):
            self._groups[counter_set].pop()


def _amount(counter: Counter, where: str) -> Amount:
    try:
        return amount_of(Quantity.parse(str(counter.value)))
    except InvalidQuantity as error:
        raise AllocatorError(f"{where}: {error}") from error


def _in_common(known: Groups, more: Groups) -> Groups:
    return known if known is None or more is None else known & more


def _allocated(device: Device, usage: Usage) -> bool:
    return usage.in_use(device.id) or usage.shares(device.id) > 0 or bool(usage.consumed(device.id))
