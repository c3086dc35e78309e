"""Builds the input of `decide` for one pod of the documents: the engine of `hami-dra explain`.

Called by the command. In: documents (files, a snapshot, a live cluster) and a reference to a pod.
Out: the inventory and the demand, as if the pod had no node and no devices yet. All other pods and
claims count as they are; pods without a node do not count, except the other members of the pod's
gang: they count where they would be placed with it. Pure.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from controller.assessment import AssessedUnit
from controller.decide import Options, SchedulingRequest, SharedClaims
from controller.insight.manifests import Item, Raw, gather, read
from controller.insight.simulation.placing import Placing, Unready, WaitingUnit, problem_of, settled, units, unready
from controller.insight.simulation.report import SimulationReport
from controller.insight.simulation.run import generate_volume_claims
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
from controller.insight.simulation.workloads import EXPANDED, Workloads
from controller.inventory import Heartbeat, Inventory
from controller.preemption import NoPlan, PreemptionPlan
from controller.views.explanation import GangExplanation
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.errors import InputError
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_finished, is_pending
from hami_dra.api.similar_names import similar
from hami_dra.kube.documents import Document


class NoSuchPod(InputError):
    """The input has no such pod, or no pod that uses the claim; the message names similar ones."""


class Question(Struct, frozen=True):
    pod: Pod
    inventory: Inventory
    options: Options
    request: SchedulingRequest | None
    problem: str
    """Without a demand: why the pod cannot be decided on."""
    notes: tuple[str, ...]
    gang: GangExplanation | None = None
    """The decision on the pod's gang, if it is a member of one."""
    plan: Callable[[], PreemptionPlan | NoPlan] | None = None
    """Plans preemption for the pod, or for its gang. None: it cannot be decided on."""
    view: SimulatedCluster | None = None
    waiting: WaitingUnit | None = None
    """The pod, or the waiting members of its gang."""


def question(
    documents: Iterable[Document],
    kind: str,
    key: str,
    settings: SimulationSettings,
    beat: Callable[[], None] = lambda: None,
) -> Question:
    """`kind`: `pod`, or `claim`: its first pod. `beat` is called often meanwhile. Raises NoSuchPod, BadManifest."""
    gathered = gather(documents)
    items = gathered.items
    nodes = [item.object for item in items if item.kind is kinds.NODE]
    pods = [(item.source, item.raw) for item in items if item.kind is kinds.POD]
    workloads = Workloads(items, nodes)
    pods += [(item.source, raw) for item in items if item.kind in EXPANDED for raw in workloads.pods_of(item)]
    source, raw = _found(pods, kind, key)
    target = read(source, kinds.POD, raw).object
    notes = list(gathered.notes)
    own = claim_keys(target)
    freed = (
        _freed(item, target, notes) if item.kind is kinds.RESOURCE_CLAIM and item.key in own else item for item in items
    )
    view = SimulatedCluster.of(freed, settings)
    generate_volume_claims([(source, raw)], workloads, view)
    for item in items:
        if item.kind is kinds.POD and item.key != target.key and is_bound(item.object):
            view.run(item.object)
        elif item.kind is kinds.POD and is_finished(item.object):
            view.gangs.pod_changed(None, item.object)  # it may count as a member
    waiting = settled(source, _unplaced(raw), view)
    notices = view.notices
    others = [settled(*each, view) for each in pods if each[1] is not raw and not _is_placed(*each)]
    with view.inventory.verdicts.within(Heartbeat(beat)):
        # in the order of their creation, as the controller meets them: messages name the first at fault
        for each in sorted(
            (waiting, *others), key=lambda each: (each.pod.metadata.creation_timestamp or "", each.pod.key)
        ):
            view.gangs.pod_changed(None, each.pod)
        placing = Placing(view, settings, SimulationReport(), SharedClaims())
        waits = units((waiting, *others), view)[0]
        assessed = placing.assess(waits)
        gang = _decided_gang(placing, assessed, waiting.pod, view)
    problem = problem_of(assessed)
    request = None if problem else next((each for each in assessed.ready if each.pod.key == target.key), None)
    if request is None and not problem:
        problem = unready(assessed)[target.key].sentence
    return Question(
        pod=waiting.pod,
        inventory=view.inventory,
        options=settings.options,
        request=request,
        problem=problem,
        notes=(*notes, *view.notes, *notices),
        gang=gang,
        plan=(lambda: view.preemption(assessed.unit).plan(assessed.unit)) if request is not None else None,
        view=view,
        waiting=waits,
    )


def _decided_gang(
    placing: Placing, unit: AssessedUnit[Unready], pod: Pod, view: SimulatedCluster
) -> GangExplanation | None:
    """Decide on the pod's gang, if any. Where it fits, its other members count at their places afterwards."""
    if unit.gang is None:
        return None
    decision = placing.decide(unit)
    for member, placed in decision.placed:
        if member.pod.key != pod.key:
            view.inventory.assume_pod(member.pod, placed.node)
            view.inventory.usage.assume(placed.holdings)
    return decision.gang


def _is_placed(source: str, raw: Raw) -> bool:
    """Return whether the pod has a node, or needs none any more."""
    pod: Pod = read(source, kinds.POD, raw).object
    return not is_pending(pod)


def _found(pods: list[tuple[str, Raw]], kind: str, key: str) -> tuple[str, Raw]:
    """Return the source and JSON of the pod. Raises NoSuchPod."""
    known: set[str] = set()
    for source, raw in pods:
        pod: Pod = read(source, kinds.POD, raw).object
        keys = (pod.key,) if kind == "pod" else claim_keys(pod)
        if key in keys:
            return source, raw
        known.update(keys)
    namespace, _, name = key.partition("/")
    others = {each.removeprefix(f"{namespace}/") for each in known if each.startswith(f"{namespace}/")}
    what = f"no Pod {key}" if kind == "pod" else f"no pod that uses ResourceClaim {key}"
    none = f"; namespace {namespace} has no pod" + ("" if kind == "pod" else " with a claim")
    raise NoSuchPod(f"{what}{similar(name, others) or none}")


def _freed(item: Item, target: Pod, notes: list[str]) -> Item:
    """Return the claim without its allocation, unless other pods use it too."""
    status = item.raw.get("status") or {}
    if not status.get("allocation"):
        return item
    others = [each["name"] for each in status.get("reservedFor") or () if each.get("name") != target.metadata.name]
    if others:
        notes.append(f"ResourceClaim {item.key} is used by {', '.join(others)} too: it stays allocated")
        return item
    left = {name: value for name, value in status.items() if name not in {"allocation", "reservedFor", "devices"}}
    return read(item.source, kinds.RESOURCE_CLAIM, {**item.raw, "status": left})


def _unplaced(raw: Raw) -> Raw:
    """Return the pod as if it waited: without its node, its end and its deletion."""

    def without(part: str, field: str) -> dict[str, Any]:
        return {name: value for name, value in (raw.get(part) or {}).items() if name != field}

    return {
        **raw,
        "metadata": without("metadata", "deletionTimestamp"),
        "spec": without("spec", "nodeName"),
        "status": without("status", "phase"),
    }
