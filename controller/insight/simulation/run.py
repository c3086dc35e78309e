"""One simulation: places the pods of the input in file order, each on top of those before it.

Called through `controller.insight.simulation`. First, everything that depends on the pod alone is
resolved for all pods (conversion, claims), because a pod that shares a claim must be placed where
the others fit too. Then the pods are decided one by one; members of a gang all at once, when the
first of them comes.
"""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from controller.decide import SharedClaims
from controller.insight.manifests import Item, Raw, derived_uid, describe, gather, read
from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.placing import Placing, WaitingPod, settled, units
from controller.insight.simulation.report import SimulationReport
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
from controller.insight.simulation.volume_claims import of_ephemeral_volumes
from controller.insight.simulation.workloads import EXPANDED, Workloads
from controller.inventory import Heartbeat
from controller.webhook import asks_for_cards, metadata_notices
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_finished, other_gates
from hami_dra.kube.documents import Document


class Played(Struct, frozen=True):
    """The report, and the cluster after the simulation."""

    report: SimulationReport
    view: SimulatedCluster


OnPod = Callable[[int, int], None]
"""(pods decided, pods in total). Called after each pod, and often during a long decision; may raise to stop."""


def _quiet(_done: int, _total: int) -> None:
    pass


def simulate(documents: Iterable[Document], settings: SimulationSettings, on_pod: OnPod = _quiet) -> SimulationReport:
    """Run a simulation. Raises BadManifest, and what `on_pod` raises."""
    return play(documents, settings, on_pod).report


def play(documents: Iterable[Document], settings: SimulationSettings, on_pod: OnPod = _quiet) -> Played:
    """Run a simulation and keep the cluster. Raises BadManifest, and what `on_pod` raises."""
    gathered = gather(documents)
    view = SimulatedCluster.of(gathered.items, settings)
    workloads = Workloads(gathered.items, view.nodes)
    for group in workloads.groups.groups:
        view.feed(group)
    view.notes.extend(workloads.groups.notes)
    pods: list[tuple[str, Raw]] = []
    for item in gathered.items:
        if item.kind is kinds.POD and (_awaits_its_cards(item, view) or not _has_its_place(item.object, view)):
            pods.append((item.source, item.raw))
        elif item.kind in EXPANDED:
            pods.extend((item.source, raw) for raw in workloads.pods_of(item))
            view.notice(item.source, describe(item.kind, item.raw), metadata_notices(item.raw))
    generate_volume_claims(pods, workloads, view)
    report = SimulationReport(preemptions=[] if settings.preemption else None)
    waiting = [settled(source, raw, view) for source, raw in pods]
    shared = SharedClaims()
    for each in waiting:
        if not each.problem and not other_gates(each.pod):
            shared.add(each.pod, _named_claims(each.pod))
    _place_all(waiting, Placing(view, settings, report, shared), view, on_pod)
    report.notes = [*gathered.notes, *view.notes]
    report.notices = view.notices
    return Played(report, view)


def _place_all(waiting: list[WaitingPod], placing: Placing, view: SimulatedCluster, on_pod: OnPod) -> None:
    for each in waiting:
        view.gangs.pod_changed(None, each.pod)
    done = 0
    for unit in placing.in_order(units(waiting, view)):
        with view.inventory.verdicts.within(Heartbeat(partial(on_pod, done, len(waiting)))):
            placing.place(unit)
        done += len(unit.members)
        on_pod(done, len(waiting))


def generate_volume_claims(pods: Iterable[tuple[str, Raw]], workloads: Workloads, view: SimulatedCluster) -> None:
    """Add the claims that controllers would create for pods that no cluster has seen. Raises BadManifest."""
    claims = list(workloads.volume_claims)
    for source, raw in pods:
        pod: Pod = read(source, kinds.POD, raw).object
        if pod.metadata.uid == derived_uid(kinds.POD, pod.metadata.namespace, pod.metadata.name):
            claims += [(source, claim) for claim in of_ephemeral_volumes(pod, raw)]
    for source, claim in claims:
        view.generate_volume_claim(source, claim)


def _has_its_place(pod: Pod, view: SimulatedCluster) -> bool:
    """Return whether the pod runs on its node, where it counts, or has finished or is terminating."""
    if is_finished(pod):
        view.gangs.pod_changed(None, pod)  # it may count as a member
        return True
    if pod.spec.node_name:
        view.run(with_label_keys(pod))
        return True
    return pod.metadata.deletion_timestamp is not None


def _awaits_its_cards(item: Item, view: SimulatedCluster) -> bool:
    """Return whether the pod names its node in a manifest and lacks its cards; in a cluster such a pod runs."""
    pod: Pod = item.object
    written = pod.metadata.uid == derived_uid(kinds.POD, pod.metadata.namespace, pod.metadata.name)
    if not pod.spec.node_name or not written or is_finished(pod):
        return False
    named = (view.claims.get(key) for key in _named_claims(pod))
    is_open = any(claim is not None and claim.status.allocation is None for claim in named)
    generated = any(entry.resource_claim_template_name for entry in pod.spec.resource_claims)
    return is_open or generated or asks_for_cards(item.raw, view.plugin_offers)


def _named_claims(pod: Pod) -> list[str]:
    """Return the claims that other pods may name too."""
    named = (entry.resource_claim_name for entry in pod.spec.resource_claims)
    return [f"{pod.metadata.namespace}/{name}" for name in named if name]
