"""Why pods of a state wait: each pod with claims and without a node, decided on alone, members of a
gang together. Pure.

Called by `hami-dra status --pending` and `hami-dra doctor`. In: documents. Out: the sentences of
events and of `explain`: plugin of kube-scheduler, object, figure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from controller.assessment import AssessedUnit
from controller.decide import SharedClaims
from controller.gangs import GangKey
from controller.insight.manifests import Item, gather
from controller.insight.simulation.placing import Placing, SimulatedDecision, Unready, WaitingUnit, settled, unready
from controller.insight.simulation.report import SimulationReport
from controller.insight.simulation.run import generate_volume_claims
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
from controller.insight.simulation.workloads import Workloads
from hami_dra.api import kinds
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_finished, is_pending, is_probe, scheduled_condition
from hami_dra.kube.documents import Document

MOST: Final = 100
"""Pods that are decided on; of more the oldest."""


class PendingPod(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pod: str
    """`ns/name`."""
    since: str
    """When it was created, RFC 3339; empty: not known."""
    fits: bool = False
    """A node has room for it now: the controller has not decided on it yet."""
    held: bool = False
    """No node may run it, whatever is free: something outside the nodes must change first."""
    allocated: bool = False
    """It has devices, and kube-scheduler has not bound it yet."""
    gang: str = ""
    """`gang ns/name` where `why` is about all members of its gang that wait; else empty."""
    reasons: dict[str, int] = {}
    """Reason code → number of cards or nodes."""
    why: tuple[str, ...] = ()
    """Sentences, the most general first."""


class PendingPods(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pods: tuple[PendingPod, ...] = ()
    """Oldest first."""
    left_out: int = 0
    """Number of waiting pods that are not in `pods`."""


def pending_pods(
    documents: Iterable[Document],
    settings: SimulationSettings,
    *,
    most: int = MOST,
    may_be_meant: Callable[[str], bool] = lambda _key: True,
    on_pod: Callable[[int, int], None] = lambda _done, _total: None,
) -> PendingPods:
    """Return the waiting pods with claims. `may_be_meant`: by key, which of them. Raises BadManifest."""
    items = gather(documents).items
    view = running(items, settings)
    waiting = [
        item
        for item in items
        if item.kind is kinds.POD
        and item.object.spec.resource_claims
        and is_pending(item.object)
        and not is_probe(item.object)
    ]
    waiting.sort(key=lambda item: (item.object.metadata.creation_timestamp or "", item.key))
    for item in waiting:
        view.gangs.pod_changed(None, item.object)
    judge = _Judge(view, settings, waiting)
    waiting = [item for item in waiting if may_be_meant(item.key)]
    found = []
    for done, item in enumerate(waiting[:most]):
        on_pod(done, min(most, len(waiting)))
        found.append(judge.judged(item))
    return PendingPods(pods=tuple(found), left_out=len(waiting) - len(found))


def running(items: Iterable[Item], settings: SimulationSettings) -> SimulatedCluster:
    """Return the cluster with all that runs, and no pod that waits."""
    items = [*items]
    view = SimulatedCluster.of(items, settings)
    pods = [(item.source, item.raw) for item in items if item.kind is kinds.POD]
    generate_volume_claims(pods, Workloads((), view.nodes), view)
    for item in items:
        if item.kind is kinds.POD and is_bound(item.object):
            view.run(item.object)
        elif item.kind is kinds.POD and is_finished(item.object):
            view.gangs.pod_changed(None, item.object)  # it may count as a member
    return view


class _Judge:
    """Decides on the waiting pods of a cluster; on each gang once."""

    def __init__(self, view: SimulatedCluster, settings: SimulationSettings, waiting: Sequence[Item]) -> None:
        self._view = view
        self._placing = Placing(view, settings, SimulationReport(), SharedClaims())
        self._waiting = waiting
        self._gangs: dict[GangKey, tuple[AssessedUnit[Unready], SimulatedDecision]] = {}

    def judged(self, item: Item) -> PendingPod:
        key, since = item.key, item.object.metadata.creation_timestamp or ""
        claims = [claim for name in claim_keys(item.object) if (claim := self._view.claims.get(name)) is not None]
        if claims and all(claim.status.allocation is not None for claim in claims):
            condition = scheduled_condition(item.object)
            said = f": {condition.message}" if condition is not None and condition.message else ""
            return PendingPod(pod=key, since=since, allocated=True, why=(f"kube-scheduler has not bound it yet{said}",))
        assessed, decision = self._decided(item)
        if (not_ready := unready(assessed).get(key)) is not None:
            why, code = not_ready.sentence.removeprefix(f"Pod {key}: "), not_ready.code
            return PendingPod(pod=key, since=since, held=bool(code), reasons={code: 1} if code else {}, why=(why,))
        gang = str(assessed.gang.key) if assessed.gang is not None else ""
        if (refusal := decision.refused.get(key)) is not None:
            gang = gang if decision.message else ""
            return PendingPod(pod=key, since=since, gang=gang, reasons=dict(refusal.reasons), why=(refusal.message,))
        node = next(placed.node for member, placed in decision.placed if member.pod.key == key)
        fits = f"{gang} fits, {len(decision.placed)} members at once" if gang else f"it fits on {node}"
        return PendingPod(pod=key, since=since, gang=gang, fits=True, why=(f"{fits}; it is not decided yet",))

    def _decided(self, item: Item) -> tuple[AssessedUnit[Unready], SimulatedDecision]:
        gang = self._view.gangs.of(item.object)
        if gang is None:
            return self._decide(WaitingUnit((settled(item.source, item.raw, self._view),)))
        if gang not in self._gangs:
            members = [each for each in self._waiting if self._view.gangs.of(each.object) == gang]
            waiting = [settled(each.source, each.raw, self._view) for each in members]
            self._gangs[gang] = self._decide(WaitingUnit(tuple(waiting), gang))
        return self._gangs[gang]

    def _decide(self, unit: WaitingUnit) -> tuple[AssessedUnit[Unready], SimulatedDecision]:
        assessed = self._placing.assess(unit)
        return assessed, self._placing.decide(assessed)
