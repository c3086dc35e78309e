"""Claims that are gone from the cluster while their devices are still held.

A claim that holds devices can vanish under a running pod: its finalizer is removed and it is
deleted. Its devices are in use nevertheless, so it counts, for devices and for quotas, until the
use is over. There are two sources:

- **seen**: the inventory saw the claim vanish while a pod that uses it was there. The pods are
  recorded by uid at that moment, and the claim counts until the last of them has finished or is
  gone. A claim created again under the same name is another claim.
- **reported**: after a restart that memory is lost. The node driver reports the claims that it has
  prepared and that are gone, in an annotation on its slice (`hami_dra.api.heldclaims`). An entry
  counts while no claim with that uid is known, and was not seen to vanish. It is believed about the
  slice's own driver and pool, and about a namespace's quota only if a pod of that namespace with
  that uid runs on that node: a node that lies harms only itself and its own pods.

Fed by the inventory; writes the ledger and the quotas. Everything depends on the current state, in
any order of events, except "seen", which is about the moment.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from controller.cluster.pods.pods import PodBook
from controller.inventory.ledger import Holding, Ledger, holdings_of
from controller.inventory.model import DeviceId
from controller.inventory.quotas import QuotaBook
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.heldclaims import HeldClaim
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_done
from hami_dra.api.resource import ResourceClaim, ResourceSlice
from hami_dra.kube.store import Index


class Holder(NamedTuple):
    """A pod that holds a claim."""

    uid: str
    key: str
    """`namespace/name`"""


class VanishedClaim(Struct, frozen=True):
    """A claim that is gone and still counts, for display."""

    uid: str
    """Empty: several claims of which only the devices are known."""
    namespace: str
    name: str
    holdings: tuple[Holding, ...]
    holders: tuple[Holder, ...]
    """The known holders, by name."""
    node: str = ""
    """Node of the driver that reports it; empty: it was seen to vanish."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.uid else "several claims"

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        return tuple(sorted({holding.device for holding in self.holdings}))


class _Seen(Struct):
    claim: ResourceClaim
    holders: dict[str, str]
    """Uid → key of the pods that are not over."""


class _Report(Struct, frozen=True, eq=False):
    """One entry of an annotation. `key`: its name in ledger and quotas, unlike any claim's uid."""

    key: str
    claim: HeldClaim
    node: str
    holdings: tuple[Holding, ...]


class VanishedClaims:
    """`recount` is called with the devices whose usage has changed."""

    def __init__(self, ledger: Ledger, quotas: QuotaBook, pods: PodBook) -> None:
        self._ledger = ledger
        self._quotas = quotas
        self._pods = pods
        self._present: set[str] = set()
        """Uids of all claims that are there."""
        self._allocated: dict[str, ResourceClaim] = {}
        self._users: dict[str, tuple[str, ...]] = {}
        """Uids of all pods that use claims and are not over → keys of these claims."""
        self._users_of = Index()
        """Key of a claim → uids of such pods."""
        self._seen: dict[str, _Seen] = {}
        """By claim uid."""
        self._held_by = Index()
        """Pod uid → uids of seen claims."""
        self._reports: dict[str, tuple[_Report, ...]] = {}
        """By slice."""
        self._reports_of: defaultdict[str, set[_Report]] = defaultdict(set)
        """By claim uid, and by pod uid."""
        self.version = 0
        """Increases whenever a claim starts or stops counting."""

    # -- reading -----------------------------------------------------------------------------------

    def all(self) -> list[VanishedClaim]:
        """Return the claims that count now, by name; a claim reported by several drivers is one entry for each."""
        found = [_view_of_seen(seen) for seen in self._seen.values()]
        found += [
            self._view_of_report(report)
            for entries in self._reports.values()
            for report in entries
            if self._counts(report)
        ]
        return sorted(found, key=lambda each: (each.namespace, each.name, each.uid, each.node, each.devices))

    def is_held_by(self, pod_uid: str) -> bool:
        """Return whether the pod holds a claim that was seen to vanish."""
        return bool(self._held_by.keys(pod_uid))

    # -- feeds -------------------------------------------------------------------------------------

    def claim_seen(self, claim: ResourceClaim) -> None:
        """Record an existing claim. To be called before the ledger is updated."""
        uid = claim.metadata.uid
        if claim.status.allocation is not None:
            self._allocated[uid] = claim
        else:
            self._allocated.pop(uid, None)
        if uid in self._seen:  # it is back, as after a restored backup
            self._drop_seen(uid)
        if uid not in self._present:
            self._present.add(uid)
            self._weigh(self._reports_of.get(uid, ()))

    def claim_gone(self, uid: str) -> bool:
        """Record that a claim is gone. Returns whether its observed usage goes on counting."""
        self._present.discard(uid)
        claim = self._allocated.pop(uid, None)
        if claim is not None and holdings_of(claim.status.allocation):
            holders = self._holders(claim)
            if holders:
                self._seen[uid] = _Seen(claim, holders)
                for pod_uid in holders:
                    self._held_by.add(pod_uid, uid)
                self.version += 1
        self._weigh(self._reports_of.get(uid, ()))
        return uid in self._seen

    def pod_changed(self, over: Iterable[str], new: Pod | None) -> None:
        """`over`: uids of pods that are gone or have finished. To be called after the pods are counted."""
        for uid in over:
            self._uses(uid, ())
            self._users.pop(uid, None)
            self._release(uid)
            self._weigh(self._reports_of.get(uid, ()))
        if new is None or is_done(new):
            return
        if new.spec.resource_claims or new.status.extended_resource_claim_status is not None:
            self._uses(new.metadata.uid, claim_keys(new))
            self._weigh(self._reports_of.get(new.metadata.uid, ()))

    def starts_over(self, pod_uid: str) -> bool:
        """Release the vanished claims of a pod that is decided without being bound: it never came
        to use them.

        Returns whether anything was freed.
        """
        return self._pods.bound(pod_uid) is None and self._release(pod_uid)

    def slice_changed(self, name: str, slice_: ResourceSlice | None, claims: Sequence[HeldClaim] = ()) -> None:
        """Record the held claims that a slice reports; `slice_` None: it is gone, or not believed."""
        before = self._reports.pop(name, ())
        for report in before:
            for uid in (report.claim.uid, *report.claim.pods):
                self._reports_of[uid].discard(report)
                if not self._reports_of[uid]:
                    del self._reports_of[uid]
        fresh = tuple(_report(name, number, slice_, claim) for number, claim in enumerate(claims)) if slice_ else ()
        if fresh:
            self._reports[name] = fresh
        for report in fresh:
            for uid in (report.claim.uid, *report.claim.pods):
                self._reports_of[uid].add(report)
        current_keys = {report.key for report in fresh}
        for report in before:
            if report.key not in current_keys:
                self._count(report, counts=False)
        self._weigh(fresh)

    # -- inside ------------------------------------------------------------------------------------

    def _holders(self, claim: ResourceClaim) -> dict[str, str]:
        """Return uid → key of the existing pods that use the claim: reserved for, or bound and referring to it."""
        namespace = claim.metadata.namespace
        found = {
            each.uid: f"{namespace}/{each.name}"
            for each in claim.status.reserved_for
            if each.resource == kinds.POD.plural and each.uid in self._users
        }
        for uid in self._users_of.keys(claim.key):
            if (pod := self._pods.bound(uid)) is not None:
                found[uid] = pod.key
        return found

    def _uses(self, pod_uid: str, keys: Iterable[str]) -> None:
        """Record which claims the pod uses."""
        before, now = self._users.get(pod_uid, ()), tuple(keys)
        if before == now and pod_uid in self._users:
            return
        for key in before:
            self._users_of.discard(key, pod_uid)
        self._users[pod_uid] = now
        for key in now:
            self._users_of.add(key, pod_uid)

    def _release(self, pod_uid: str) -> bool:
        freed = False
        for uid in (*self._held_by.keys(pod_uid),):
            self._held_by.discard(pod_uid, uid)
            seen = self._seen[uid]
            del seen.holders[pod_uid]
            if not seen.holders:
                self._drop_seen(uid)
                self._ledger.observe(uid, None)
                self._weigh(self._reports_of.get(uid, ()))
                freed = True
        return freed

    def _drop_seen(self, uid: str) -> None:
        for pod_uid in self._seen.pop(uid).holders:
            self._held_by.discard(pod_uid, uid)
        self.version += 1

    def _counts(self, report: _Report) -> bool:
        return report.claim.uid not in self._present and report.claim.uid not in self._seen

    def _weigh(self, entries: Iterable[_Report]) -> None:
        """Start or stop counting the reports of drivers, by the current state."""
        for report in tuple(entries):
            self._count(report, counts=self._counts(report))

    def _count(self, report: _Report, *, counts: bool) -> None:
        if counts and any(pod.metadata.namespace == report.claim.namespace for pod in self._pods_of(report)):
            self._quotas.seen(report.key, report.claim.namespace)
        else:
            self._quotas.leave(report.key)
        if self._ledger.hold(report.key, report.holdings if counts else ()):
            self.version += 1

    def _pods_of(self, report: _Report) -> list[Pod]:
        """Return the pods that it names and that run on its node with claims of their own."""
        found = (self._pods.bound(uid) for uid in report.claim.pods if uid in self._users)
        return [pod for pod in found if pod is not None and pod.spec.node_name == report.node]

    def _view_of_report(self, report: _Report) -> VanishedClaim:
        return VanishedClaim(
            uid=report.claim.uid,
            namespace=report.claim.namespace,
            name=report.claim.name,
            holdings=report.holdings,
            holders=_by_name(Holder(pod.metadata.uid, pod.key) for pod in self._pods_of(report)),
            node=report.node,
        )


def _view_of_seen(seen: _Seen) -> VanishedClaim:
    meta = seen.claim.metadata
    return VanishedClaim(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        holdings=holdings_of(seen.claim.status.allocation),
        holders=_by_name(Holder(uid, key) for uid, key in seen.holders.items()),
    )


def _by_name(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    return tuple(sorted(holders, key=lambda each: (each.key, each.uid)))


def _report(name: str, number: int, slice_: ResourceSlice, claim: HeldClaim) -> _Report:
    """Return the report. Its devices are of the slice's driver and pool, regardless of what the entry says."""
    spec = slice_.spec
    held: list[Holding] = []
    for each in claim.devices:
        consumed: Mapping[str, int] | None = each.consumed
        held.append(Holding(DeviceId(spec.driver, spec.pool.name, each.device), consumed, each.mark))
    key = f"{claim.namespace}/{claim.name}/{claim.uid}#{number}@{name}"
    return _Report(key, claim, spec.node_name or "", tuple(held))
