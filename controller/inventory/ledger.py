"""Usage of devices, summed over the allocations of all claims, regardless of who wrote them.

Fed by the inventory with observed claims and with assumptions of our own. An assumption replaces
the observed state of the same claim until it is forgotten. Usage is stored by device id, so it
outlives slices: a device that vanishes and comes back is as used as before. Admin access uses
nothing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from controller.inventory.model import Amount, DeviceId, amount_of, value_of
from hami_dra.api.core import QuantityText
from hami_dra.api.opaque import problem_of
from hami_dra.api.quantity import Quantity
from hami_dra.api.resource import AllocationResult, DeviceAllocationConfiguration
from hami_dra.api.short_texts import cached_if_short
from hami_dra.vendors.registry import vendor_of

_NOTHING: Mapping[str, Amount] = {}


class DeviceUsage(Struct):
    """Usage of one device."""

    exclusive: int = 0
    shares: int = 0
    consumed: dict[str, Amount] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    """Sharing class of tenants, by `Vendor.mark` → how many; only those that are not 0."""

    @property
    def nothing(self) -> bool:
        return not self.exclusive and not self.shares

    @property
    def mark(self) -> int:
        """The sharing class, 0 if there is none. If tenants disagree (another allocator admitted
        them), the lowest counts.
        """
        return min(self.marks, default=0)


class Holding(Struct, frozen=True):
    """One device held by one claim; `consumed` is None for an exclusive allocation."""

    device: DeviceId
    consumed: Mapping[str, Amount] | None
    mark: int = 0


class Ledger:
    """Implements `controller.inventory.model.Usage`. Every change returns the devices
    whose usage may have changed, and reports them to `changed`, with the uids of the claims.
    """

    def __init__(
        self, changed: Callable[[Collection[str], set[DeviceId]], None] = lambda _uids, _devices: None
    ) -> None:
        self._changed = changed
        self._observed: dict[str, tuple[Holding, ...]] = {}
        self._assumed: dict[str, tuple[Holding, ...]] = {}
        self._uses: dict[DeviceId, DeviceUsage] = {}

    # -- Usage -------------------------------------------------------------------------------------

    def in_use(self, device: DeviceId) -> bool:
        use = self._uses.get(device)
        return use is not None and use.exclusive > 0

    def shares(self, device: DeviceId) -> int:
        use = self._uses.get(device)
        return use.shares if use is not None else 0

    def consumed(self, device: DeviceId) -> Mapping[str, Amount]:
        use = self._uses.get(device)
        return use.consumed if use is not None else _NOTHING

    def use_of(self, device: DeviceId) -> DeviceUsage | None:
        return self._uses.get(device)

    def uses(self) -> Mapping[DeviceId, DeviceUsage]:
        """The usage of every device in use. A live view: read it at once, change nothing."""
        return self._uses

    def holders(self, device: DeviceId) -> list[str]:
        """Return the uids of the claims that hold a device. Reads all claims: for reports."""
        uids = self._observed.keys() | self._assumed.keys()
        return sorted(uid for uid in uids if any(holding.device == device for holding in self.counted(uid)))

    def counted(self, claim_uid: str) -> tuple[Holding, ...]:
        """Return the holdings of a claim that count: the assumption if there is one."""
        assumed = self._assumed.get(claim_uid)
        return assumed if assumed is not None else self._observed.get(claim_uid, ())

    def assumed(self, claim_uid: str) -> tuple[Holding, ...] | None:
        """Return the assumption about a claim; None: there is none."""
        return self._assumed.get(claim_uid)

    # -- changes -----------------------------------------------------------------------------------

    def observe(self, claim_uid: str, allocation: AllocationResult | None) -> set[DeviceId]:
        """Record the observed state of a claim; None = it has no allocation, or is gone."""
        return self._replace(self._observed, {claim_uid: holdings_of(allocation) or None})

    def hold(self, key: str, holdings: tuple[Holding, ...]) -> set[DeviceId]:
        """Count holdings without an existing claim, under a key of their own; nothing ends them."""
        return self._replace(self._observed, {key: holdings or None})

    def assume(self, assumptions: Mapping[str, tuple[Holding, ...] | None]) -> set[DeviceId]:
        """Count exactly these holdings of the claims, none for `()`, or what was observed again (None)."""
        return self._replace(self._assumed, assumptions)

    def forget(self, claim_uid: str) -> set[DeviceId]:
        """End an assumption: the observed state counts again. Idempotent."""
        return self.assume({claim_uid: None})

    def _replace(
        self, where: dict[str, tuple[Holding, ...]], fresh: Mapping[str, tuple[Holding, ...] | None]
    ) -> set[DeviceId]:
        """Replace the holdings of some claims; None: drop them."""
        changed, devices = list[str](), set[DeviceId]()
        for uid, holdings in fresh.items():
            before = self.counted(uid)
            if holdings is None:
                where.pop(uid, None)
            else:
                where[uid] = holdings
            after = self.counted(uid)
            if before != after:
                self._count(before, -1)
                self._count(after, +1)
                devices.update([holding.device for holding in (*before, *after)])
                changed.append(uid)
        if changed:
            self._changed(changed, devices)
        return devices

    def _count(self, holdings: Iterable[Holding], sign: int) -> None:
        for holding in holdings:
            use = self._uses.get(holding.device)
            if use is None:
                use = self._uses[holding.device] = DeviceUsage()
            if holding.mark:
                use.marks[holding.mark] = use.marks.get(holding.mark, 0) + sign
                if not use.marks[holding.mark]:
                    del use.marks[holding.mark]
            if holding.consumed is None:
                use.exclusive += sign
            else:
                use.shares += sign
                for name, amount in holding.consumed.items():
                    use.consumed[name] = use.consumed.get(name, 0) + sign * amount
                if not use.shares:
                    use.consumed.clear()
            if use.nothing:
                del self._uses[holding.device]


def holdings_of(
    allocation: AllocationResult | None, is_shared: Callable[[DeviceId], bool] = lambda _: False
) -> tuple[Holding, ...]:
    """Return the holdings. Shared results have a shareID or consumedCapacity; others hold the device alone."""
    if allocation is None:
        return ()
    found = []
    for result in allocation.devices.results:
        if result.admin_access:
            continue
        device = DeviceId(result.driver, result.pool, result.device)
        shared = bool(result.share_id or result.consumed_capacity) or is_shared(device)
        consumed = {name: _amount(text) for name, text in result.consumed_capacity.items()}
        whole_units = {name: value_of(text) for name, text in result.consumed_capacity.items()}
        mark = mark_of(result.driver, result.request, allocation.devices.config, whole_units)
        found.append(Holding(device, consumed if shared else None, mark))
    return tuple(found)


@cached_if_short(1_024)
def _amount(text: QuantityText) -> Amount:
    """Return the exact amount, at least 0."""
    return max(amount_of(Quantity.or_zero(str(text))), 0)


def mark_of(
    driver: str, request: str, config: Iterable[DeviceAllocationConfiguration], consumed: Mapping[str, int]
) -> int:
    """Return the tenant's sharing class, as numbered by the device's vendor; 0 if the parameters are unreadable.

    `request`, `config`: as the allocation spells them; `consumed`: of the device, in whole units.
    """
    vendor = vendor_of(driver)
    if vendor is None:
        return 0
    parameters: dict[str, Any] = {}
    for entry in config:
        whole = request.partition("/")[0]  # of a prioritized list
        concerned = not entry.requests or not {request, whole}.isdisjoint(entry.requests)
        if not concerned or entry.opaque is None or entry.opaque.driver != driver:
            continue
        if not problem_of(entry.opaque.parameters):
            decoded = msgspec.json.decode(entry.opaque.parameters)
            if isinstance(decoded, dict):
                parameters.update(decoded)
    return vendor.mark(parameters, consumed)
