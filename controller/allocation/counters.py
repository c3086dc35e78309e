"""Shared counters of partitionable devices, and their compatibility groups.

Called by the search for devices that consume counters. In: pools with their counter sets, the
ledger. Out: yes or no, with the counters taken until they are released. Rules: upstream's
checkAvailableCounters and compatibility_groups.go.
"""

from weakref import WeakKeyDictionary

from controller.allocation.errors import AllocatorError
from controller.inventory.model import Amount, Device, Pool, Usage, amount_of
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import Counter

CounterName = tuple[str, str]
"""(counter set, counter)."""
Groups = frozenset[str] | None
"""The compatibility groups common to all devices on a counter set; None: none of them declares any."""

_CONSUMPTION: WeakKeyDictionary[Device, tuple[tuple[CounterName, Amount], ...]] = WeakKeyDictionary()


def drawn_counters(device: Device) -> tuple[tuple[CounterName, Amount], ...]:
    """Return what the device takes of the counters of its pool, once for all its shares. Raises AllocatorError."""
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
    """Return (counter set, groups) for every counter set of the device."""
    return tuple(
        (entry.counter_set, frozenset(entry.compatibility_groups) or None) for entry in device.spec.consumes_counters
    )


class Counters:
    """The counters of all pools of one node. What is left is computed once per pool, at first use."""

    def __init__(self, usage: Usage, *, groups: bool) -> None:
        """`groups`: compatibility groups are enforced (DRADeviceCompatibilityGroups)."""
        self._usage = usage
        self._enforce_groups = groups
        self._pools: dict[tuple[str, str], _PoolCounters] = {}

    def take(self, pool: Pool, device: Device) -> bool:
        """Take the device's counters.

        Returns False, and takes nothing, if a counter or the groups of neighbouring devices do not
        allow it. Raises AllocatorError: a counter that is no quantity.
        """
        counters = self._of(pool)
        if self._enforce_groups and not counters.admits(device):
            return False
        if not counters.take(device):
            return False
        counters.join(device)
        return True

    def release(self, pool: Pool, device: Device) -> None:
        """Undo the latest `take`."""
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
    """The counters of one pool.

    A card of 8 memory slices, with a MIG device of 4 allocated: 4 are left, so another device of 4
    fits and the whole card (8) does not. `_groups` is a stack for each counter set: the common
    groups after each device that joined, so that `leave` only pops.
    """

    def __init__(self, pool: Pool, usage: Usage) -> None:
        self._left: dict[CounterName, Amount] = {
            (counter_set.name, name): _amount(
                counter, f"pool {pool.driver}/{pool.name}: sharedCounters: {counter_set.name}.{name}"
            )
            for counter_set in pool.counter_sets.values()
            for name, counter in counter_set.counters.items()
        }
        # By counter set, the common groups of its devices after each device that joined.
        self._groups: dict[str, list[Groups]] = {}
        for device in (*pool.devices, *pool.elsewhere):
            if device.spec.consumes_counters and _allocated(device, usage):
                self.release(device, sign=-1)
                self.join(device)
        # An overdrawn counter (its set shrank, or another component over-allocated) blocks every
        # device with counters.
        self._overdrawn = any(left < 0 for left in self._left.values())

    def take(self, device: Device) -> bool:
        if self._overdrawn or any(amount > self._left.get(name, 0) for name, amount in drawn_counters(device)):
            return False
        self.release(device, sign=-1)
        return True

    def release(self, device: Device, *, sign: int = 1) -> None:
        for name, amount in drawn_counters(device):
            if name in self._left:
                self._left[name] += sign * amount

    def admits(self, device: Device) -> bool:
        """Return whether the device and those on its counter sets have a group in common, or none
        of them declares any.
        """
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
            common = history[-1] if history else groups
            history.append(common if common is None or groups is None else common & groups)

    def leave(self, device: Device) -> None:
        for counter_set, _ in declared_groups(device):
            self._groups[counter_set].pop()


def _amount(counter: Counter, where: str) -> Amount:
    try:
        return amount_of(Quantity.parse(str(counter.value)))
    except InvalidQuantity as error:
        raise AllocatorError(f"{where}: {error}") from error


def _allocated(device: Device, usage: Usage) -> bool:
    return usage.in_use(device.id) or usage.shares(device.id) > 0 or bool(usage.consumed(device.id))
