"""Limits and guarantees of the ResourceQuotas of each namespace for our vendors' cards, and their usage,
updated incrementally.

Fed by the inventory: quotas, claims that came or went, claims whose holdings changed, republished
cards. Everybody who wants to know how much is used or left asks this book. Usage is counted only
for namespaces that have such a quota; for all others only the uids of their claims are stored. The
ledger's holdings count, assumed allocations included: a claim once, regardless of the pods that
share it, and admin access not at all. The vendors define how a card is counted
(`hami_dra.vendors.quotas`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from controller.cluster.incremental.changes import UidTracker
from controller.cluster.incremental.saturation import saturated
from controller.inventory.ledger import Holding
from controller.inventory.model import Amount, Device, DeviceId
from controller.inventory.quota_headroom import QuotaHeadroom, QuotaLine
from controller.inventory.quota_limits import Limit, limits_of
from hami_dra.api import names
from hami_dra.api.core import ResourceQuota, ResourceQuotaSpec
from hami_dra.kube.store import Index
from hami_dra.vendors.registry import quotas_of

Charge = Mapping[str, int]
"""Resource (`nvidia.com/gpumem`) → grains of its `QuotaName`."""
_NOTHING: Final[Charge] = {}


class QuotaBook:
    """The quotas and their usage.

    `holdings_of`: the ledger's holdings of a claim. `device_of`: a published device, None if it is
    not published.
    """

    def __init__(
        self,
        holdings_of: Callable[[str], tuple[Holding, ...]],
        device_of: Callable[[DeviceId], Device | None],
    ) -> None:
        self._holdings_of = holdings_of
        self._device_of = device_of
        self._quotas: defaultdict[str, dict[str, tuple[ResourceQuotaSpec, str, tuple[Limit, ...]]]] = defaultdict(dict)
        """By namespace and name, guarantees too: each is read when it changes, not when another one does."""
        self._limits: dict[str, tuple[Limit, ...]] = {}
        self._guarantees: dict[str, tuple[Limit, ...]] = {}
        self.owed: dict[str, Charge] = {}
        """Namespace → what it is owed, only those with a guarantee. Of several the largest counts, by resource."""
        self._incarnations = UidTracker()
        self._claims = Index()
        """Namespace → uids."""
        self._namespace_of: dict[str, str] = {}
        self._gone: set[str] = set()
        self._charges: dict[str, dict[DeviceId, Counter[str]]] = {}
        """By claim and device, the part of `_used`."""
        self._used: dict[str, Counter[str]] = {}
        self._holders = Index()
        """Device → uids of claims."""
        self._published: dict[DeviceId, Device] = {}
        """Devices in use as last counted: a pool being rebuilt is not empty."""
        self.version = 0
        """Increases whenever a limit or the usage of a limited namespace changes."""
        self.problems: dict[str, str] = {}
        """`ResourceQuota ns/name` → the part that is not enforced, and the fix."""

    # -- reading -----------------------------------------------------------------------------------

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with a quota for cards, sorted."""
        return sorted(self._limits)

    def limits(self, namespace: str) -> tuple[Limit, ...]:
        """Return the limits by name of the quota, then in its own order; several quotas apply side by side."""
        return self._limits.get(namespace, ())

    def used(self, namespace: str) -> Charge:
        """Return the usage; only for namespaces with limits or a guarantee."""
        return self._used.get(namespace, _NOTHING)

    def charge(self, holdings: Iterable[Holding]) -> Charge:
        """Return what such holdings add, in whatever namespace."""
        total = Counter[str]()
        for holding in holdings:
            total.update(charge_of(holding, self._device_of(holding.device) or self._published.get(holding.device)))
        return total

    def charge_of_claim(self, uid: str) -> Charge:
        """Return what a claim adds, in whatever namespace."""
        if (known := self._charges.get(uid)) is None:
            return self.charge(self._holdings_of(uid))
        total = Counter[str]()
        for charge in known.values():
            total.update(charge)
        return total

    def headroom(self, namespace: str) -> QuotaHeadroom | None:
        """Return what is left, or None if no quota of the namespace is about cards."""
        limits = self._limits.get(namespace)
        return QuotaHeadroom.of(namespace, limits, self.used(namespace)) if limits else None

    def lines(self, namespaces: Iterable[str] | None = None, *, guarantees: bool = False) -> list[QuotaLine]:
        """Return lines by namespace, then quota, then in the order in which the quota lists its keys.

        `namespaces`: only these; None: all that have a quota for cards. `guarantees`: also what is owed.
        """
        chosen = sorted({*self._limits, *self._guarantees} if namespaces is None else set(namespaces))
        return [
            QuotaLine.of(namespace, limit, self.used(namespace).get(limit.name.resource, 0), kind)
            for namespace in chosen
            for kind, limits in (("limit", self._limits), ("guarantee", self._guarantees if guarantees else {}))
            for limit in limits.get(namespace, ())
        ]

    def problem(self, quota: ResourceQuota) -> str:
        """Return the part of a quota that is not enforced, and the fix; empty if all is enforced."""
        return self.problems.get(_title(quota), "")

    # -- feeds -------------------------------------------------------------------------------------

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        is_gone = self._incarnations.gone(old, new)
        quota = new or old
        if quota is None or (new is None and not is_gone):
            return
        namespace, name, label = (
            quota.metadata.namespace,
            quota.metadata.name,
            quota.metadata.labels.get(names.QUOTA_LABEL, ""),
        )
        quotas, problem = self._quotas[namespace], ""
        if new is None:
            del quotas[name]
        elif name in quotas and quotas[name][:2] == (new.spec, label):
            return
        else:
            limits, problem = limits_of(new)
            quotas[name] = new.spec, label, limits
        self.problems.pop(_title(quota), None)
        if problem:
            self.problems[_title(quota)] = problem
        self._relimit(namespace)
        if not quotas:
            del self._quotas[namespace]

    def seen(self, uid: str, namespace: str) -> None:
        """Record that a claim, or a holding without one, of this namespace exists. To be called before `recount`."""
        self._gone.discard(uid)
        if self._namespace_of.get(uid) != namespace:
            self._namespace_of[uid] = namespace
            self._claims.add(namespace, uid)
            self.recount(uid)

    def claim_gone(self, uid: str) -> None:
        """Record that the claim is gone; its assumed allocation counts until it is forgotten."""
        if uid in self._namespace_of:
            self._gone.add(uid)
            self.recount(uid)

    def leave(self, uid: str) -> None:
        """Charge a holding without a claim to no namespace any more, regardless of the ledger."""
        namespace = self._namespace_of.get(uid)
        if namespace is not None:
            if namespace in self._used:
                self._recharge(uid, namespace, {})
            self._forget(uid, namespace)

    def recount(self, uid: str) -> None:
        """Recompute the charge of a claim whose holdings may have changed."""
        namespace = self._namespace_of.get(uid)
        if namespace is None:
            return
        if namespace in self._used:
            self._charge(uid, namespace)
        if uid in self._gone and not self._holdings_of(uid):
            self._forget(uid, namespace)

    def device_published(self, device: Device) -> None:
        """Recompute the charges of a republished device: its totals may have changed."""
        for uid in sorted(self._holders.keys(device.id)):
            self._charge(uid, self._namespace_of[uid])

    # -- inside ------------------------------------------------------------------------------------

    def _forget(self, uid: str, namespace: str) -> None:
        self._gone.discard(uid)
        del self._namespace_of[uid]
        self._claims.discard(namespace, uid)

    def _relimit(self, namespace: str) -> None:
        stated = [(limit, label) for _, (_, label, found) in sorted(self._quotas[namespace].items()) for limit in found]
        limits, owed = tuple([limit for limit, label in stated if label != names.GUARANTEE]), Counter[str]()
        guarantees = tuple([limit for limit, label in stated if label == names.GUARANTEE])
        for limit in guarantees:
            owed[limit.name.resource] = max(owed[limit.name.resource], limit.grains)
        self._limits.pop(namespace, None)
        self.owed.pop(namespace, None)
        self._guarantees.pop(namespace, None)
        if limits:
            self._limits[namespace] = limits
        if owed:
            self.owed[namespace], self._guarantees[namespace] = owed, guarantees
        self.version += 1
        if stated and namespace not in self._used:
            self._used[namespace] = Counter()
            for uid in sorted(self._claims.keys(namespace)):
                self._charge(uid, namespace)
        elif not stated and namespace in self._used:
            for uid in self._claims.keys(namespace):
                for device in self._charges.pop(uid, {}):
                    self._release(uid, device)
            del self._used[namespace]

    def _charge(self, uid: str, namespace: str) -> None:
        """Charge the claim for its current holdings."""
        fresh: dict[DeviceId, Counter[str]] = {}
        for holding in self._holdings_of(uid):
            if quotas_of(holding.device.driver) is not None:
                if (device := self._device_of(holding.device)) is not None:
                    self._published[device.id] = device
                charge = charge_of(holding, self._published.get(holding.device))
                fresh.setdefault(holding.device, Counter()).update(charge)
        self._recharge(uid, namespace, fresh)

    def _recharge(self, uid: str, namespace: str, fresh: dict[DeviceId, Counter[str]]) -> None:
        """Replace the charge of the claim, device by device."""
        before = self._charges.pop(uid, {})
        if fresh:
            self._charges[uid] = fresh
        if fresh == before:
            return
        used = self._used[namespace]
        for charge in before.values():
            used.subtract(charge)
        for charge in fresh.values():
            used.update(charge)
        self._used[namespace] = +used
        self.version += 1
        for device in fresh:
            self._holders.add(device, uid)
        for device in before.keys() - fresh.keys():
            self._release(uid, device)

    def _release(self, uid: str, device: DeviceId) -> None:
        self._holders.discard(device, uid)
        if device not in self._holders:
            self._published.pop(device, None)


def charge_of(holding: Holding, device: Device | None) -> Charge:
    """Return the charge of one holding.

    `device`: None if unknown: it counts as a card then, with the amounts that the allocation names.
    """
    quotas = quotas_of(holding.device.driver)
    if quotas is None:
        return _NOTHING
    totals, model = (device.totals, device.model) if device is not None else (_NOTHING, "")
    if holding.consumed is None:
        return quotas.charge({name: saturated(amount) for name, amount in totals.items()}, whole=True, model=model)
    consumed = {name: _whole(amount) for name, amount in holding.consumed.items()}
    return quotas.charge(consumed, whole=device is not None and quotas.is_whole(consumed, totals), model=model)


def _whole(amount: Amount) -> int:
    """Return the amount rounded up to whole units of the capacity."""
    return saturated(amount if isinstance(amount, int) else -(-amount.numerator // amount.denominator))


def _title(quota: ResourceQuota) -> str:
    return f"ResourceQuota {quota.key}"
