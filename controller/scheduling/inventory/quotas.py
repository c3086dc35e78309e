"""Limits of the ResourceQuotas of each namespace for our vendors' cards, and their usage, updated
incrementally.

Fed by the inventory: quotas, claims that came or went, claims whose holdings changed, republished
cards. Read by `controller.scheduling.quota`. Usage is counted only for namespaces that have such a
quota; for all others only the uids of their claims are stored. The ledger's holdings count, assumed
allocations included: a claim once, regardless of the pods that share it, and admin access not at
all. The vendors define how a card is counted (`hami_dra.vendors.quotas`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from msgspec import Struct

from controller.scheduling.incremental.changes import UidTracker
from controller.scheduling.incremental.saturation import saturated
from controller.scheduling.inventory.ledger import Holding
from controller.scheduling.inventory.model import Amount, Device, DeviceId
from hami_dra.api.core import ResourceQuota
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.vendors.quotas import PREFIX, QuotaName
from hami_dra.vendors.registry import QUOTA_NAMES, quotas_of

Charge = Mapping[str, int]
"""Resource (`nvidia.com/gpumem`) → grains of its `QuotaName`."""
_NOTHING: Final[Charge] = {}
_PREFIXES: Final = (PREFIX, "requests.")
_MOST_COMPARED: Final = 50
"""Unknown keys of one quota for which a similar one is looked up: a tenant chooses how many there are."""
_SIMILAR: Final = 0.85
"""Least similarity of a key in a domain of no vendor to one that counts: `limits.nvida.com/gpu`."""


class Limit(Struct, frozen=True):
    """One key of one quota."""

    quota: str
    """Name of the ResourceQuota."""
    name: QuotaName
    grains: int


class CountedDevice(NamedTuple):
    """What quotas need to know of a published device."""

    totals: Mapping[str, int]
    """Capacity → amount."""
    model: str
    """The series of the card (`DriverProfile.model`)."""


_UNKNOWN: Final = CountedDevice(_NOTHING, "")


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
        self._quotas: defaultdict[str, dict[str, ResourceQuota]] = defaultdict(dict)
        """By namespace and name."""
        self._limits_by_quota: dict[str, tuple[Limit, ...]] = {}
        """By title of the quota: each is read when it changes, not when another one does."""
        self._limits: dict[str, tuple[Limit, ...]] = {}
        self._incarnations = UidTracker()
        self._claims: defaultdict[str, set[str]] = defaultdict(set)
        self._namespace_of: dict[str, str] = {}
        self._gone: set[str] = set()
        self._charges: dict[str, dict[DeviceId, Counter[str]]] = {}
        """By claim and device, the part of `_used`."""
        self._used: dict[str, Counter[str]] = {}
        self._holders: defaultdict[DeviceId, set[str]] = defaultdict(set)
        self._published: dict[DeviceId, CountedDevice] = {}
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
        """Return the usage; only for namespaces with limits."""
        return self._used.get(namespace, _NOTHING)

    def problem(self, quota: ResourceQuota) -> str:
        """Return the part of a quota that is not enforced, and the fix; empty if all is enforced."""
        return self.problems.get(_title(quota), "")

    # -- feeds -------------------------------------------------------------------------------------

    def quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        gone = self._incarnations.gone(old, new)
        if new is not None:
            namespace, name = new.metadata.namespace, new.metadata.name
            before = self._quotas[namespace].get(name)
            self._quotas[namespace][name] = new
            if before is None or before.spec != new.spec:
                self._limits_by_quota[_title(new)] = self._limits_of(new)
                self._relimit(namespace)
        elif gone and old is not None:
            namespace = old.metadata.namespace
            del self._quotas[namespace][old.metadata.name]
            self.problems.pop(_title(old), None)
            self._limits_by_quota.pop(_title(old), None)
            self._relimit(namespace)
            if not self._quotas[namespace]:
                del self._quotas[namespace]

    def seen(self, uid: str, namespace: str) -> None:
        """Record that a claim, or a holding without one, of this namespace exists. To be called before `recount`."""
        self._gone.discard(uid)
        if self._namespace_of.get(uid) != namespace:
            self._namespace_of[uid] = namespace
            self._claims[namespace].add(uid)
            self.recount(uid)

    def claim_gone(self, uid: str) -> None:
        """Record that the claim is gone; its assumed allocation counts until it is forgotten."""
        if uid in self._namespace_of:
            self._gone.add(uid)
            self.recount(uid)

    def leave(self, uid: str) -> None:
        """Charge a holding without a claim to no namespace any more, regardless of the ledger."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        if namespace in self._limits:
            self._recharge(uid, namespace, {})
        self._gone.discard(uid)
        self._leave_namespace(uid, namespace)

    def recount(self, uid: str) -> None:
        """Recompute the charge of a claim whose holdings may have changed."""
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
        """Recompute the charges of a republished device: its totals may have changed."""
        for uid in sorted(self._holders.get(device.id, ())):
            self._charge(uid, self._namespace_of[uid])

    # -- inside ------------------------------------------------------------------------------------

    def _leave_namespace(self, uid: str, namespace: str) -> None:
        self._claims[namespace].discard(uid)
        if not self._claims[namespace]:
            del self._claims[namespace]

    def _relimit(self, namespace: str) -> None:
        limits: list[Limit] = []
        for _, quota in sorted(self._quotas[namespace].items()):
            limits += self._limits_by_quota[_title(quota)]
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
        """Charge the claim for its current holdings."""
        fresh: dict[DeviceId, Counter[str]] = {}
        for holding in self._holdings_of(uid):
            if quotas_of(holding.device.driver) is not None:
                charge = charge_of(holding, self._counted(holding.device))
                fresh.setdefault(holding.device, Counter()).update(charge)
        self._recharge(uid, namespace, fresh)

    def _recharge(self, uid: str, namespace: str, fresh: dict[DeviceId, Counter[str]]) -> None:
        """Replace the charge of the claim, device by device."""
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
            self._published.pop(device, None)

    def _counted(self, device: DeviceId) -> CountedDevice | None:
        """Return the device as published now or when last counted: a pool being rebuilt is not empty."""
        found = self._device_of(device)
        if found is not None:
            self._published[device] = CountedDevice(found.totals, found.model)
        return self._published.get(device)


def limits_of(quota: ResourceQuota) -> tuple[tuple[Limit, ...], str]:
    """Return the limits of a quota for our vendors' cards, and the part that is not enforced, with the fix."""
    ours = [resource for resource in quota.spec.hard if resource in QUOTA_NAMES]
    if ours and (quota.spec.scopes or quota.spec.scope_selector):
        return (), (
            f"spec.scopes and spec.scopeSelector choose among pods, and cards are counted by claim: {', '.join(ours)} "
            "of this quota do not hold; move them to a quota without scopes"
        )
    found, problem = [], _unknown_key(quota.spec.hard)
    for resource in ours:
        name = QUOTA_NAMES[resource]
        try:
            hard = Quantity.parse(str(quota.spec.hard[resource]))
        except InvalidQuantity as error:
            problem = f'spec.hard["{resource}"]: {error}; it does not hold, write a whole number'
        else:
            found.append(Limit(quota.metadata.name, name, saturated(name.limit(hard))))
    return tuple(found), problem


def _unknown_key(hard: Iterable[str]) -> str:
    """Return which key limits nothing although it is about cards, and the keys there are; empty if
    none is so. A `requests.` key of a count is for kube-scheduler's pods with a device plugin.

    >>> _unknown_key(["limits.nvida.com/gpumem"])
    'spec.hard names limits.nvida.com/gpumem, which limits nothing: no vendor has that resource; write limits.nvidia.com/gpumem'
    """
    compared = iter(range(_MOST_COMPARED))
    for key in hard:
        prefix, resource = next(
            ((each, key.removeprefix(each)) for each in _PREFIXES if key.startswith(each)), ("", key)
        )
        if key in QUOTA_NAMES or "/" not in resource:
            continue
        known = sorted(each for each in QUOTA_NAMES if each.startswith(f"{PREFIX}{resource.partition('/')[0]}/"))
        same = QUOTA_NAMES.get(PREFIX + resource)
        if same is not None and (not prefix or same.capacity):
            return f"spec.hard names {key}, which limits nothing: the devices of claims are counted by limits; write {same.key}"
        if prefix == PREFIX and not known and next(compared, None) is not None:
            known = get_close_matches(key, list(QUOTA_NAMES), n=1, cutoff=_SIMILAR)
        if prefix == PREFIX and known:
            choice = "one of " if len(known) > 1 else ""
            return f"spec.hard names {key}, which limits nothing: no vendor has that resource; write {choice}{', '.join(known)}"
    return ""


def charge_of(holding: Holding, device: CountedDevice | None) -> Charge:
    """Return the charge of one holding.

    `device`: None if unknown: it counts as a card then, with the amounts that the allocation names.
    """
    quotas = quotas_of(holding.device.driver)
    if quotas is None:
        return _NOTHING
    known = device or _UNKNOWN
    if holding.consumed is None:
        totals = {name: saturated(amount) for name, amount in known.totals.items()}
        return quotas.charge(totals, whole=True, model=known.model)
    consumed = {name: _whole(amount) for name, amount in holding.consumed.items()}
    whole = device is not None and quotas.is_whole(consumed, device.totals)
    return quotas.charge(consumed, whole=whole, model=known.model)


def _whole(amount: Amount) -> int:
    """Return the amount rounded up to whole units of the capacity."""
    return saturated(amount if isinstance(amount, int) else -(-amount.numerator // amount.denominator))


def _title(quota: ResourceQuota) -> str:
    return f"ResourceQuota {quota.key}"
