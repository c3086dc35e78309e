"""Decides one pod of a simulation, or the members of a gang together, and reports it. Pure.

Called by `run`, and by explanations for the input of one decision. A unit is what is decided at
once: `units` of waiting pods, `Placing.assess` a unit, `decide` it, and `place` it for good.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.allocation import stamped
from controller.assessment import AssessedUnit, Foreign, Ignored, Waiting, assess, assess_unit, shared_claims
from controller.decide import (
    Decision,
    SchedulingRequest,
    SharedClaims,
    Unschedulable,
)
from controller.gangs import GangKey, UnitRefusal, decide_unit
from controller.insight.explain import explain, explained_gang, with_gang
from controller.insight.manifests import Raw, read
from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.report import SimulationReport, claim_entry
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
from controller.preemption import NoPlan
from controller.views.explanation import GangExplanation
from controller.webhook import ConversionRefused, asks_for_cards, convert_pod, unconverted_namespace
from controller.webhook import Options as ConvertOptions
from hami_dra.api import kinds
from hami_dra.api.core import Pod

_UNGATED: Final = ConvertOptions(gate=False, schedulers=())


class WaitingPod(Struct):
    pod: Pod
    """The converted pod."""
    problem: str = ""
    """Not empty: why the pod cannot be decided on."""


def settled(source: str, raw: Raw, view: SimulatedCluster) -> WaitingPod:
    """Return the pod as the webhook converts it, and as the API server accepts it. Raises BadManifest."""
    item = read(source, kinds.POD, raw)
    namespace = item.object.metadata.namespace
    if not view.is_converted(namespace):
        if asks_for_cards(item.raw, view.plugin_offers):
            return WaitingPod(item.object, f"Pod {item.key}: {unconverted_namespace(namespace)}")
        return _checked(with_label_keys(item.object), view)
    try:
        conversion = convert_pod(
            item.raw, namespace, replace(_UNGATED, is_served=view.offers, gang_sources=view.gang_sources)
        )
    except ConversionRefused as error:
        return WaitingPod(item.object, str(error))
    view.notice(source, f"Pod {item.key}", conversion.warnings)
    for template in conversion.templates:
        view.feed(read(source, kinds.RESOURCE_CLAIM_TEMPLATE, template))
    return _checked(with_label_keys(read(source, kinds.POD, conversion.pod).object), view)


def _checked(pod: Pod, view: SimulatedCluster) -> WaitingPod:
    for entry in pod.spec.resource_claims:
        if (entry.resource_claim_name is None) == (entry.resource_claim_template_name is None):
            fix = "give either resourceClaimName or resourceClaimTemplateName"
            return WaitingPod(pod, f"Pod {pod.key}: spec.resourceClaims[{entry.name}]: {fix}")
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for resource in {**container.resources.limits, **container.resources.requests}:
            if device_class := view.served_by(resource):
                return WaitingPod(
                    pod,
                    f'Pod {pod.key}: container "{container.name}" asks for {resource}, which stands for DeviceClass '
                    f"{device_class}: kube-scheduler would serve it, and hami-dra keeps the devices from it; ask by a "
                    "ResourceClaim, or let the webhook convert the pod",
                )
    return WaitingPod(pod)


class WaitingUnit(Struct, frozen=True):
    """What is decided at once: one pod, or the members of a gang that wait."""

    members: tuple[WaitingPod, ...]
    gang: GangKey | None = None


def units(waiting: Iterable[WaitingPod], view: SimulatedCluster) -> list[WaitingUnit]:
    """Return the pods that are decided together, in order of the first of each. Their gangs know them already."""
    together: dict[object, tuple[GangKey | None, list[WaitingPod]]] = {}
    for each in waiting:
        gang = view.gangs.of(each.pod)
        together.setdefault(gang or each.pod.key, (gang, []))[1].append(each)
    return [WaitingUnit(tuple(members), gang) for gang, members in together.values()]


class Unready(Struct, frozen=True):
    """Why a pod cannot be decided on."""

    sentence: str
    code: str = ""
    """Reason code, where no node can have the pod whatever is free."""


def problem_of(unit: AssessedUnit[Unready]) -> str:
    """Return why no pod of the unit can be placed, or empty."""
    gang, first = unit.gang, unit.blocked[0].why.sentence if unit.blocked else ""
    if gang is None:
        return first
    return gang.problem or gang.incomplete or (f"{gang.key}: {first}" if len(unit.ready) < unit.least else "")


def unready(unit: AssessedUnit[Unready]) -> dict[str, Unready]:
    """Return by key the pods that cannot be decided on."""
    return {each.pod.key: each.why for each in unit.blocked}


class SimulatedDecision(Struct, frozen=True):
    """Each pod of the unit is either placed or refused."""

    placed: tuple[tuple[SchedulingRequest, Decision], ...] = ()
    refused: Mapping[str, Unschedulable] = MappingProxyType({})
    """By key; all members of a gang with the same words where none is placed (`message`)."""
    message: str = ""
    """Why the unit is not placed."""
    gang: GangExplanation | None = None
    domain: str = ""


class Placing:
    """Decisions on units. `shared`: claim references of the pods that are not placed yet."""

    def __init__(
        self, view: SimulatedCluster, settings: SimulationSettings, report: SimulationReport, shared: SharedClaims
    ) -> None:
        self._shared = shared
        self._view = view
        self._settings = settings
        self._report = report

    def in_order(self, waiting: list[WaitingUnit]) -> list[WaitingUnit]:
        """Return the units in the order in which they are decided: with preemption by descending
        priority, as in the queue.
        """
        if not self._settings.preemption:
            return waiting
        return sorted(waiting, key=lambda unit: -max(self._view.tenants.priority(each.pod) for each in unit.members))

    def assess(self, unit: WaitingUnit) -> AssessedUnit[Unready]:
        pods = [member.pod for member in unit.members]
        problems = {member.pod.key: member.problem for member in unit.members}
        state = self._view.gangs.state(unit.gang) if unit.gang is not None else None
        return assess_unit(pods[0], pods, state, lambda pod: self._assess(pod, problems[pod.key]), thorough=True)

    def _assess(self, pod: Pod, problem: str) -> SchedulingRequest | Unready:
        if problem:
            return Unready(problem)
        answer = assess(pod, self._view, self._settings.assessment)
        match answer:
            case SchedulingRequest():
                return replace(answer, companions=self._shared.companions(pod, shared_claims(answer)))
            case Waiting():
                return Unready(answer.sentence(pod.key), answer.code)
            case Ignored() | Foreign():
                return Unready(f"Pod {pod.key}: {answer.why}")

    def decide(self, unit: AssessedUnit[Unready]) -> SimulatedDecision:
        """Decide as many pods as the unit needs at once, or none."""
        if problem := problem_of(unit):
            return self._refused(unit, None, Unschedulable(problem, error=problem), problem)
        answer = decide_unit(self._view.inventory, unit.unit, self._settings.options)
        if isinstance(answer, UnitRefusal):
            message, refusal = answer.message, answer.refusal
            if unit.gang is not None:
                message = f"{unit.gang.key}: {message}"
                refusal = dataclasses.replace(
                    refusal, message=message, error=refusal.error and message, reason=answer.reason
                )
            return self._refused(unit, answer, refusal, message)
        refused = {request.pod.key: refusal for request, refusal in answer.left}
        refused |= {key: Unschedulable(why.sentence, error=why.sentence) for key, why in unready(unit).items()}
        gang = explained_gang(unit.gang, answer) if unit.gang is not None else None
        return SimulatedDecision(answer.placed, refused, "", gang, answer.domain)

    def _preempt(self, unit: AssessedUnit[Unready], decision: SimulatedDecision) -> SimulatedDecision:
        """Return the places that a refused unit gets by preemption; its victims are removed."""
        refusal = next(iter(decision.refused.values()), None)
        if decision.placed or refusal is None or not refusal.lacks_room or not self._may_preempt(unit):
            return decision
        plan = self._view.preemption(unit.unit).plan(unit.unit)
        if isinstance(plan, NoPlan):
            message = f"{refusal.message}; preemption does not help: {plan.sentence}"
            refused = dict.fromkeys(decision.refused, dataclasses.replace(refusal, message=message))
            return replace(decision, refused=refused, message=decision.message and message)
        self._report.preempted(plan)
        self._view.leave((*plan.victims, *plan.releasing))
        placed = {request.pod.key for request, _ in plan.placed}
        refused = {key: each for key, each in decision.refused.items() if key not in placed}
        return SimulatedDecision(plan.placed, refused)

    def _may_preempt(self, unit: AssessedUnit[Unready]) -> bool:
        preemptors = self._settings.preemptors
        named = preemptors is None or any(pod.key in preemptors for pod in unit.pods)
        return self._settings.preemption and named

    def _refused(
        self, unit: AssessedUnit[Unready], answer: UnitRefusal | None, refusal: Unschedulable, message: str
    ) -> SimulatedDecision:
        gang = explained_gang(unit.gang, answer, message) if unit.gang is not None else None
        return SimulatedDecision((), dict.fromkeys([pod.key for pod in unit.pods], refusal), message, gang)

    def place(self, unit: WaitingUnit) -> None:
        """Decide the unit, and count its pods where they are placed."""
        assessed = self.assess(unit)
        decision = self._preempt(assessed, self.decide(assessed))
        if assessed.gang is not None:
            self._report.gang(
                assessed.gang, placed=len(decision.placed), domain=decision.domain, message=decision.message
            )
        # a member is explained among the others: it comes last
        for member, placed in sorted(decision.placed, key=lambda each: each[0].pod.key == self._settings.explained):
            pinned = replace(member, preferred_node=placed.node) if assessed.gang is not None else member
            self._explain(pinned, decision.gang)
            self._carry_out(member, placed)
        requests = {} if problem_of(assessed) else {request.pod.key: request for request in assessed.ready}
        for key, refusal in decision.refused.items():
            if (request := requests.get(key)) is not None:
                self._explain(request, decision.gang)
            self._report.refused(key, refusal.message, refusal.error, refusal.reasons, refusal.reason)

    def _explain(self, request: SchedulingRequest, gang: GangExplanation | None) -> None:
        """Explain the decision if the pod is the one that was named."""
        if request.pod.key == self._settings.explained:
            explanation = explain(self._view.inventory, request, self._settings.options)
            self._report.explanation = with_gang(explanation, gang)

    def _carry_out(self, request: SchedulingRequest, decision: Decision) -> None:
        pod = request.pod
        self._shared.remove(pod.metadata.uid)
        for entry in decision.allocations:
            allocation = stamped(entry.allocation, self._settings.now, self._settings.new_share_id)
            self._view.allocate(entry.claim, allocation, pod)
        self._view.place(pod, decision.node)
        claims = [
            claim_entry(entry.pod_claim_name, entry.claim, self._view.allocation_of(entry.claim))
            for entry in request.claims
        ]
        self._report.placed(pod.key, decision.node, claims, decision.score)
