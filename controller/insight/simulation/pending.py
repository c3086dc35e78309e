"""Why pods of a state wait: each pod with claims and without a node, decided on alone. Pure.

Called by `hami-dra status --pending` and `hami-dra doctor`. In: documents. Out: the sentences of
events and of `explain`: plugin of kube-scheduler, object, figure.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from controller.insight.simulation.objects import Item, gather
from controller.insight.simulation.placing import SimulationSettings, asked_of, sentences
from controller.insight.simulation.run import generate_volume_claims
from controller.insight.simulation.view import SimulatedCluster
from controller.insight.simulation.workloads import EXPANDED, Workloads
from controller.scheduling.decide import Unschedulable, decide
from hami_dra.api import kinds
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_pending, is_probe, scheduled_condition
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
    """Return the waiting pods with claims. `may_be_meant`: by key, which of them. Raises
    BadManifest.
    """
    items = gather(documents).items
    view = _cluster(items, settings)
    waiting = [
        item
        for item in items
        if item.kind is kinds.POD
        and item.object.spec.resource_claims
        and is_pending(item.object)
        and not is_probe(item.object)
        and may_be_meant(item.key)
    ]
    waiting.sort(key=lambda item: (item.object.metadata.creation_timestamp or "", item.key))
    found = []
    for done, item in enumerate(waiting[:most]):
        on_pod(done, min(most, len(waiting)))
        found.append(_judged(item, view, settings))
    return PendingPods(pods=tuple(found), left_out=len(waiting) - len(found))


def _cluster(items: Iterable[Item], settings: SimulationSettings) -> SimulatedCluster:
    """Return the cluster with all that runs, and no pod that waits."""
    items = [*items]
    view = SimulatedCluster(settings.gates, settings.profiles, settings.kubernetes)
    for item in items:
        if item.kind is not kinds.POD and item.kind not in EXPANDED:
            view.feed(item)
    view.assume_defaults()
    pods = [(item.source, item.raw) for item in items if item.kind is kinds.POD]
    generate_volume_claims(pods, Workloads((), view.nodes), view)
    for item in items:
        if item.kind is kinds.POD and is_bound(item.object):
            view.run(item.object)
    return view


def _judged(item: Item, view: SimulatedCluster, settings: SimulationSettings) -> PendingPod:
    key, since = item.key, item.object.metadata.creation_timestamp or ""
    claims = [claim for name in claim_keys(item.object) if (claim := view.claims.get(name)) is not None]
    if claims and all(claim.status.allocation is not None for claim in claims):
        condition = scheduled_condition(item.object)
        said = f": {condition.message}" if condition is not None and condition.message else ""
        return PendingPod(pod=key, since=since, allocated=True, why=(f"kube-scheduler has not bound it yet{said}",))
    pod, asked = asked_of(item.source, item.raw, view, settings)
    if isinstance(asked, str):
        held = view.inventory.held(pod)
        return PendingPod(
            pod=key,
            since=since,
            held=held is not None,
            reasons={held.code: 1} if held is not None else {},
            why=(held.sentence if held is not None else asked.removeprefix(f"Pod {key}: "),),
        )
    answer = decide(view.inventory, asked, settings.options)
    if isinstance(answer, Unschedulable):
        return PendingPod(pod=key, since=since, reasons=dict(answer.reasons), why=tuple(sentences(answer)))
    return PendingPod(pod=key, since=since, fits=True, why=(f"it fits on {answer.node}; it is not decided yet",))
