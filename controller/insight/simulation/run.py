"""One simulation: places the pods of the input in file order, each on top of those before it.

Called through `controller.insight.simulation`. `load` says what runs in the input and what waits, for
simulations and for decisions on single pods. First, everything that depends on the pod alone is
resolved for all pods (conversion, claims), because a pod that shares a claim must be placed where
the others fit too. Then the pods are decided one by one; members of a gang all at once, when the
first of them comes.
"""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from controller.insight.manifests import Gathered, Item, derived_uid, describe, gather, read
from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.placing import Placing, settled, units
from controller.insight.simulation.report import SimulationReport
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
from controller.insight.simulation.volume_claims import of_ephemeral_volumes
from controller.insight.simulation.workloads import EXPANDED, Workloads
from controller.inventory import Heartbeat
from controller.webhook import asks_for_cards, metadata_notices
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_finished, is_live, other_gates
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
    return play(gather(documents), settings, on_pod).report


def play(gathered: Gathered, settings: SimulationSettings, on_pod: OnPod = _quiet) -> Played:
    """Run a simulation and keep the cluster. Raises BadManifest, and what `on_pod` raises."""
    view, items = load(gathered.items, settings, awaits=_awaits_its_cards)
    for item in gathered.items:
        if item.kind in EXPANDED:
            view.notice(item.source, describe(item.kind, item.raw), metadata_notices(item.raw))
    waiting = [settled(item, view) for item in items]
    placing = Placing(view, SimulationReport(preemptions=[] if settings.preemption else None))
    for pod in waiting:
        view.gangs.pod_changed(None, pod)
        if pod.key not in view.problems and not other_gates(pod):
            placing.shared.add(pod, _named_claims(pod))
    done = 0
    for unit in placing.in_order(units(waiting, view)):
        with view.inventory.verdicts.within(Heartbeat(partial(on_pod, done, len(waiting)))):
            placing.place(unit)
        done += len(unit)
        on_pod(done, len(waiting))
    placing.report.notes = [*gathered.notes, *view.notes]
    placing.report.notices = view.notices
    return Played(placing.report, view)


def load(
    items: Iterable[Item],
    settings: SimulationSettings,
    awaits: Callable[[Item, SimulatedCluster], bool] = lambda _item, _view: False,
) -> tuple[SimulatedCluster, list[Item]]:
    """Return the cluster with all that runs, and the pods that wait for a node, also those of workloads, in
    file order. Their gangs do not know them yet. Raises BadManifest.

    `awaits`: whether a pod waits although it has a node.
    """
    items = [*items]
    view = SimulatedCluster(items, settings)
    workloads = Workloads(items, view.nodes)
    for group in workloads.groups.groups:
        view.feed(group)
    view.notes.extend(workloads.groups.notes)
    waiting: list[Item] = []
    for item in items:
        pod = item.object
        if item.kind in EXPANDED:
            waiting += [read(item.source, kinds.POD, raw) for raw in workloads.pods_of(item)]
        elif item.kind is not kinds.POD:
            continue
        elif awaits(item, view):
            waiting.append(item)
        elif is_finished(pod):
            view.gangs.pod_changed(None, pod)  # it may count as a member
        elif pod.spec.node_name:
            view.run(with_label_keys(pod))
        elif is_live(pod):
            waiting.append(item)
    _generate_volume_claims(waiting, workloads, view)
    return view, waiting


def _generate_volume_claims(waiting: Iterable[Item], workloads: Workloads, view: SimulatedCluster) -> None:
    """Add the claims that controllers would create for pods that no cluster has seen. Raises BadManifest."""
    for source, claim in workloads.volume_claims:
        view.generate_volume_claim(source, claim)
    for item in filter(_is_written, waiting):
        for claim in of_ephemeral_volumes(item.object, item.raw):
            view.generate_volume_claim(item.source, claim)


def _is_written(item: Item) -> bool:
    """Return whether the pod was written by hand: a cluster would have given it a UID."""
    metadata = item.object.metadata
    return bool(metadata.uid == derived_uid(kinds.POD, metadata.namespace, metadata.name))


def _awaits_its_cards(item: Item, view: SimulatedCluster) -> bool:
    """Return whether the pod names its node in a manifest and lacks its cards; in a cluster such a pod runs."""
    pod: Pod = item.object
    if not pod.spec.node_name or not _is_written(item) or is_finished(pod):
        return False
    named = (view.claims.get(key) for key in _named_claims(pod))
    is_open = any(claim is not None and claim.status.allocation is None for claim in named)
    generated = any(entry.resource_claim_template_name for entry in pod.spec.resource_claims)
    return is_open or generated or asks_for_cards(item.raw, view.plugin_offers)


def _named_claims(pod: Pod) -> list[str]:
    """Return the claims that other pods may name too."""
    named = (entry.resource_claim_name for entry in pod.spec.resource_claims)
    return [f"{pod.metadata.namespace}/{name}" for name in named if name]
