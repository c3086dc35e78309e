"""What the ResourceQuotas of each namespace limit of our vendors' cards, and how much of it is used, kept by difference.

Fed by the inventory: quotas, claims that came or went, claims whose holdings changed, cards that were published anew. Read by
`controller.scheduling.quota`. Usage is counted only for namespaces that have such a quota; of all others nothing but the uids of
their claims is kept. What is counted is what the ledger counts, assumed allocations included: a claim once, whoever shares
it, and admin access not at all. How a card is counted is the vendors' business (`hami_dra.vendors.quotas`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.scheduling.inventory.changes import UidTracker
from controller.scheduling.inventory.ledger import Holding
from controller.scheduling.inventory.model import Amount, Device, DeviceId
from controller.scheduling.inventory.saturation import saturated
from hami_dra.api.core import ResourceQuota
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.vendors.quotas import QuotaName
from hami_dra.vendors.registry import QUOTA_NAMES, quotas_of

Charge = Mapping[str, int]
"""Resource (`nvidia.com/gpumem`) → grains of its `QuotaName`."""
_NOTHING: Final[Charge] = {}


@dataclass(frozen=True, slots=True)
class Limit:
    """One key of one quota."""

    quota: str
    """Name of the ResourceQuota."""
    name: QuotaName
    grains: int


class QuotaBook:
    """`holdings_of`: what the ledger counts for a claim. `device_of`: a published device, None where it is not published."""

    def __init__(
        self,
        holdings_of: Callable[[str], tuple[Holding, ...]],
        device_of: Callable[[DeviceId], Device | None],
    ) -> None:
        self._holdings_of = holdings_of
        self._device_of = device_of
        self._quotas: defaultdict[str, dict[str, ResourceQuota]] = defaultdict(dict)
        """By namespace and name."""
        self._limits: dict[str, tuple[Limit, ...]] = {}
        self._incarnations = UidTracker()
        self._claims: defaultdict[str, set[str]] = defaultdict(set)
        self._namespace_of: dict[str, str] = {}
        self._gone: set[str] = set()
        self._charges: dict[str, dict[DeviceId, Counter[str]]] = {}
        """By claim, device by device, what is in `_used`."""
        self._used: dict[str, Counter[str]] = {}
        self._holders: defaultdict[DeviceId, set[str]] = defaultdict(set)
        self._totals: dict[DeviceId, Mapping[str, int]] = {}
        self.version = 0
        """Grows whenever a limit or the usage of a limited namespace changes."""
        self.problems: dict[str, str] = {}
        """`ResourceQuota ns/name` → what of it is not enforced, and what to do."""

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def namespaces(self) -> list[str]:
        """Those with a quota for cards, sorted."""
        return sorted(self._limits)

    def limits(self, namespace: str) -> tuple[Limit, ...]:
        """By name of the quota, then as the quota lists them; several quotas hold side by side."""
        return self._limits.get(namespace, ())

    def used(self, namespace: str) -> Charge:
        """Only of namespaces with limits."""
        return self._used.get(namespace, _NOTHING)

    def problem(self, quota: ResourceQuota) -> str:
        """What of a quota is not enforced, and the fix; empty where all is well."""
        return self.problems.get(_title(quota), "")

    # -- feeds -------------------------------------------------------------------------------------------------------

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        gone = self._incarnations.gone(old, new)
        if new is not None:
            namespace, name = new.metadata.namespace, new.metadata.name
            before = self._quotas[namespace].get(name)
            self._quotas[namespace][name] = new
            if before is None or before.spec != new.spec:
                self._relimit(namespace)
        elif gone and old is not None:
            namespace = old.metadata.namespace
            del self._quotas[namespace][old.metadata.name]
            self.problems.pop(_title(old), None)
            self._relimit(namespace)
            if not self._quotas[namespace]:
                del self._quotas[namespace]

    def seen(self, uid: str, namespace: str) -> None:
        """A claim of this namespace is there, or what somebody holds without one. To be called before `recount`."""
        self._gone.discard(uid)
        if self._namespace_of.get(uid) != namespace:
            self._namespace_of[uid] = namespace
            self._claims[namespace].add(uid)
            self.recount(uid)

    def claim_gone(self, uid: str) -> None:
        """It is not there any more; what is assumed of it counts until it is forgotten."""
        if uid in self._namespace_of:
            self._gone.add(uid)
            self.recount(uid)

    def leave(self, uid: str) -> None:
        """What somebody holds without a claim is charged to no namespace any more, whatever the ledger counts."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        if namespace in self._limits:
            self._recharge(uid, namespace, {})
        self._gone.discard(uid)
        self._leave_namespace(uid, namespace)

    def recount(self, uid: str) -> None:
        """What the ledger counts for the claim may have changed."""
        namespace = self._namespace_of.get(uid)
        if namespace is None:
            return
        if namespace in self._limits:
            self._charge(uid, namespace)
        if uid in self._gone and not self._holdings_of(uid):
            self._gone.discard(uid)
            del self._namespace_of[uid]
            self._leave_namespace(uid, namespace)

    def device_published(self, device: Device) -> None:
        """Anew, so all of it may be another amount."""
        for uid in sorted(self._holders.get(device.id, ())):
            self._charge(uid, self._namespace_of[uid])

    # -- inside ------------------------------------------------------------------------------------------------------

    def _leave_namespace(self, uid: str, namespace: str) -> None:
        self._claims[namespace].discard(uid)
        if not self._claims[namespace]:
            del self._claims[namespace]

    def _relimit(self, namespace: str) -> None:
        limits: list[Limit] = []
        for _, quota in sorted(self._quotas[namespace].items()):
            limits += self._limits_of(quota)
        self.version += 1
        if limits:
            counted = namespace in self._limits
            self._limits[namespace] = tuple(limits)
            if not counted:
                self._used[namespace] = Counter()
                for uid in sorted(self._claims.get(namespace, ())):
                    self._charge(uid, namespace)
        elif self._limits.pop(namespace, None) is not None:
            for uid in self._claims.get(namespace, ()):
                for device in self._charges.pop(uid, {}):
                    self._leave(uid, device)
            del self._used[namespace]

    def _limits_of(self, quota: ResourceQuota) -> tuple[Limit, ...]:
        title = _title(quota)
        found, problem = limits_of(quota)
        if problem:
            self.problems[title] = problem
        else:
            self.problems.pop(title, None)
        return found

    def _charge(self, uid: str, namespace: str) -> None:
        """Count the claim as the ledger has it now."""
        fresh: dict[DeviceId, Counter[str]] = {}
        for holding in self._holdings_of(uid):
            if quotas_of(holding.device.driver) is not None:
                charge = charge_of(holding, self._totals_of(holding.device))
                fresh.setdefault(holding.device, Counter()).update(charge)
        self._recharge(uid, namespace, fresh)

    def _recharge(self, uid: str, namespace: str, fresh: dict[DeviceId, Counter[str]]) -> None:
        """Charge this, device by device, in place of what was charged before."""
        before = self._charges.get(uid, {})
        if fresh == before:
            return
        used = self._used[namespace]
        for charge in before.values():
            used.subtract(charge)
        for charge in fresh.values():
            used.update(charge)
        self._used[namespace] = +used
        self.version += 1
        if fresh:
            self._charges[uid] = fresh
        else:
            self._charges.pop(uid, None)
        for device in fresh:
            self._holders[device].add(uid)
        for device in before.keys() - fresh.keys():
            self._leave(uid, device)

    def _leave(self, uid: str, device: DeviceId) -> None:
        holders = self._holders[device]
        holders.discard(uid)
        if not holders:
            del self._holders[device]
            self._totals.pop(device, None)

    def _totals_of(self, device: DeviceId) -> Mapping[str, int] | None:
        """As it is published, or was when it was last counted: a pool that is being made anew is not empty."""
        found = self._device_of(device)
        if found is None:
            return self._totals.get(device)
        self._totals[device] = found.totals
        return found.totals


def limits_of(quota: ResourceQuota) -> tuple[tuple[Limit, ...], str]:
    """What a quota limits of our vendors' cards, and what of it is not enforced, with the fix."""
    ours = [resource for resource in quota.spec.hard if resource in QUOTA_NAMES]
    if ours and (quota.spec.scopes or quota.spec.scope_selector):
        return (), (
            f"spec.scopes and spec.scopeSelector choose among pods, and cards are counted by claim: {', '.join(ours)} "
            "of this quota do not hold; move them to a quota without scopes"
        )
    found, problem = [], ""
    for resource in ours:
        name = QUOTA_NAMES[resource]
        try:
            hard = Quantity.parse(str(quota.spec.hard[resource]))
        except InvalidQuantity as error:
            problem = f'spec.hard["{resource}"]: {error}; it does not hold, write a whole number'
        else:
            found.append(Limit(quota.metadata.name, name, saturated(name.limit(hard))))
    return tuple(found), problem


def charge_of(holding: Holding, totals: Mapping[str, int] | None) -> Charge:
    """What one holding counts. `totals`: those of the device, or None where nobody knows it: it counts as a card then,
    with the amounts that the allocation names.
    """
    quotas = quotas_of(holding.device.driver)
    if quotas is None:
        return _NOTHING
    if holding.consumed is None:
        return quotas.charge({name: saturated(amount) for name, amount in (totals or _NOTHING).items()}, whole=True)
    taken = {name: _whole(amount) for name, amount in holding.consumed.items()}
    return quotas.charge(taken, whole=totals is not None and quotas.is_whole(taken, totals))


def _whole(amount: Amount) -> int:
    """Rounded up to whole units of the capacity."""
    return saturated(amount if isinstance(amount, int) else -(-amount.numerator // amount.denominator))


def _title(quota: ResourceQuota) -> str:
    return f"ResourceQuota {quota.key}"
