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
from controller.decide import Options, SchedulingRequest
from controller.insight.manifests import Item, gather, read
from controller.insight.simulation.placing import Placing, Unready, problem_of, settled, units, unready
from controller.insight.simulation.run import load
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
from controller.inventory import Heartbeat, Inventory
from controller.preemption import NoPlan, PreemptionPlan
from controller.views.explanation import GangExplanation
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.errors import InputError
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.similar_names import similar
from hami_dra.kube.documents import Document


class NoSuchPod(InputError):
    """The input has no such pod, or no pod that uses the claim; the message names similar ones."""


class Question(Struct, frozen=True):
    pod: Pod
    stored: Pod
    """The same pod, as it is in the input."""
    view: SimulatedCluster
    unit: AssessedUnit[Unready]
    """The pod, or the waiting members of its gang."""
    request: SchedulingRequest | None
    problem: str
    """Without a demand: why the pod cannot be decided on."""
    notes: tuple[str, ...]
    gang: GangExplanation | None = None
    """The decision on the pod's gang, if it is a member of one."""

    @property
    def inventory(self) -> Inventory:
        return self.view.inventory

    @property
    def options(self) -> Options:
        return self.view.settings.options

    def plan(self) -> PreemptionPlan | NoPlan:
        """Plan preemption for the pod, or for its gang."""
        return self.view.preemption(self.unit.unit).plan(self.unit.unit)


def question(
    documents: Iterable[Document],
    kind: str,
    key: str,
    settings: SimulationSettings,
    beat: Callable[[], None] = lambda: None,
) -> Question:
    """`kind`: `pod`, or `claim`: its first pod. `beat` is called often meanwhile. Raises NoSuchPod, BadManifest."""

    def is_meant(item: Item) -> bool:
        return item.kind is kinds.POD and key in ((item.key,) if kind == "pod" else claim_keys(item.object))

    gathered = gather(documents)
    stored = next(filter(is_meant, gathered.items), None)
    target = _unplaced(stored) if stored is not None else None
    items = [target if target is not None and item is stored else item for item in gathered.items]
    view, waiting = load(items, settings)
    if target is None and (target := next(filter(is_meant, waiting), None)) is None:
        raise _no_such_pod([item.object for item in (*items, *waiting) if item.kind is kinds.POD], kind, key)
    notes = [*gathered.notes, *_free(claim_keys(target.object), target.object, view)]
    pod = settled(target, view)
    notices = view.notices
    pods = [pod, *(settled(item, view) for item in waiting if item.key != target.key)]
    with view.inventory.verdicts.within(Heartbeat(beat)):
        # in the order of their creation, as the controller meets them: messages name the first at fault
        for each in sorted(pods, key=lambda each: (each.metadata.creation_timestamp or "", each.key)):
            view.gangs.pod_changed(None, each)
        placing = Placing(view)
        unit = placing.assess(units(pods, view)[0])
        gang = None
        if unit.gang is not None:
            decision = placing.decide(unit)
            gang = decision.gang
            # where it fits, its other members count at their places
            for member, placed in decision.placed:
                if member.pod.key != pod.key:
                    view.inventory.assume_pod(member.pod, placed.node)
                    view.inventory.usage.assume(placed.holdings)
    problem = problem_of(unit)
    request = None if problem else next((each for each in unit.ready if each.pod.key == pod.key), None)
    if request is None and not problem:
        problem = unready(unit)[pod.key].sentence
    return Question(pod, (stored or target).object, view, unit, request, problem, (*notes, *view.notes, *notices), gang)


def _no_such_pod(pods: Iterable[Pod], kind: str, key: str) -> NoSuchPod:
    known = {each for pod in pods for each in ((pod.key,) if kind == "pod" else claim_keys(pod))}
    namespace, _, name = key.partition("/")
    others = {each.removeprefix(f"{namespace}/") for each in known if each.startswith(f"{namespace}/")}
    what = f"no Pod {key}" if kind == "pod" else f"no pod that uses ResourceClaim {key}"
    none = f"; namespace {namespace} has no pod" + ("" if kind == "pod" else " with a claim")
    return NoSuchPod(f"{what}{similar(name, others) or none}")


def _free(claims: Iterable[str], pod: Pod, view: SimulatedCluster) -> Iterable[str]:
    """Deallocate the claims that no other pod uses. Yields notes about the others."""
    for key in claims:
        claim = view.claims.get(key)
        if claim is None or claim.status.allocation is None:
            continue
        others = [each.name for each in claim.status.reserved_for if each.name and each.name != pod.metadata.name]
        if others:
            yield f"ResourceClaim {key} is used by {', '.join(others)} too: it stays allocated"
        else:
            view.deallocate(claim)


def _unplaced(item: Item) -> Item:
    """Return the pod as if it waited: without its node, its end and its deletion. Raises BadManifest."""

    def without(part: str, field: str) -> dict[str, Any]:
        return {name: value for name, value in (item.raw.get(part) or {}).items() if name != field}

    raw = {
        **item.raw,
        "metadata": without("metadata", "deletionTimestamp"),
        "spec": without("spec", "nodeName"),
        "status": without("status", "phase"),
    }
    return read(item.source, kinds.POD, raw)
