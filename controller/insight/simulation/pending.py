"""Why pods of a state wait: each pod with claims and without a node, decided on alone, members of a
gang together. Pure.

Called by `hami-dra status --pending` and `hami-dra doctor`. In: documents. Out: the sentences of
events and of `explain`: plugin of kube-scheduler, object, figure.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from controller.assessment import AssessedUnit
from controller.gangs import GangKey
from controller.insight.manifests import Item, gather
from controller.insight.simulation.placing import Placing, SimulatedDecision, Unready, settled, unready
from controller.insight.simulation.run import load
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.workloads import EXPANDED
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_probe, scheduler_message
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
    view, items = load([item for item in gather(documents).items if item.kind not in EXPANDED], settings)
    items = [item for item in items if item.object.spec.resource_claims and not is_probe(item.object)]
    items.sort(key=lambda item: (item.object.metadata.creation_timestamp or "", item.key))
    for item in items:
        view.gangs.pod_changed(None, item.object)
    placing = Placing(view)
    decided: dict[GangKey | str, tuple[AssessedUnit[Unready], SimulatedDecision]] = {}
    """By gang, or by key of a pod of none."""

    def judged(item: Item) -> PendingPod:
        gang = view.gangs.of(item.object)
        key = gang or item.key
        if key not in decided:
            members = [item] if gang is None else [each for each in items if view.gangs.of(each.object) == gang]
            unit = placing.assess([settled(each, view) for each in members])
            decided[key] = unit, placing.decide(unit)
        return _judged(item.object, *decided[key])

    meant = [item for item in items if may_be_meant(item.key)]
    found = []
    for done, item in enumerate(meant[:most]):
        on_pod(done, min(most, len(meant)))
        claims = [claim for name in claim_keys(item.object) if (claim := view.claims.get(name)) is not None]
        is_allocated = bool(claims) and all(claim.status.allocation is not None for claim in claims)
        found.append(_allocated(item.object) if is_allocated else judged(item))
    return PendingPods(pods=tuple(found), left_out=len(meant) - len(found))


def _allocated(pod: Pod) -> PendingPod:
    why = ": ".join(filter(None, ("kube-scheduler has not bound it yet", scheduler_message(pod))))
    return PendingPod(pod=pod.key, since=pod.metadata.creation_timestamp or "", allocated=True, why=(why,))


def _judged(pod: Pod, unit: AssessedUnit[Unready], decision: SimulatedDecision) -> PendingPod:
    key, since = pod.key, pod.metadata.creation_timestamp or ""
    if (not_ready := unready(unit).get(key)) is not None:
        why, code = not_ready.sentence.removeprefix(f"Pod {key}: "), not_ready.code
        return PendingPod(pod=key, since=since, held=bool(code), reasons={code: 1} if code else {}, why=(why,))
    gang = str(unit.gang.key) if unit.gang is not None else ""
    if (refusal := decision.refused.get(key)) is not None:
        gang = gang if decision.message else ""
        return PendingPod(pod=key, since=since, gang=gang, reasons=dict(refusal.reasons), why=(refusal.message,))
    node = next(placed.node for member, placed in decision.placed if member.pod.key == key)
    fits = f"{gang} fits, {len(decision.placed)} members at once" if gang else f"it fits on {node}"
    return PendingPod(pod=key, since=since, gang=gang, fits=True, why=(f"{fits}; it is not decided yet",))
