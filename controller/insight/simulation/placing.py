"""Decides one pod of a simulation, or the members of a gang together, and reports it. Pure.

Called by `run`, and by explanations for the input of one decision. A unit is what is decided at
once: `units` of waiting pods, `Placing.assess` a unit, `decide` it, and `place` it for good. What
is decided, and how, is said where the controller's scheduling cycle asks as well.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.allocation import stamped
from controller.assessment import AssessedUnit, Foreign, Ignored, Waiting, assess, assess_unit, shared_claims
from controller.decide import Decision, SchedulingRequest, SharedClaims, Unschedulable
from controller.gangs import UnitDecision, UnitRefusal, decide_unit
from controller.insight.explain import explain, explained_gang, with_gang
from controller.insight.manifests import Item, read
from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.report import SimulationReport, claim_entry
from controller.insight.simulation.view import SimulatedCluster
from controller.preemption import NoPlan
from controller.views.explanation import GangExplanation
from controller.webhook import ConversionRefused, asks_for_cards, convert_pod, unconverted_namespace
from controller.webhook import Options as ConvertOptions
from hami_dra.api import kinds
from hami_dra.api.core import Pod

_UNGATED: Final = ConvertOptions(gate=False, schedulers=())


def settled(item: Item, view: SimulatedCluster) -> Pod:
    """Return the pod as the webhook converts it, and as the API server stores it. If one of them refuses it,
    `view.problems` says why. Raises BadManifest.
    """
    pod: Pod = item.object
    namespace = pod.metadata.namespace
    if view.is_converted(namespace):
        try:
            conversion = convert_pod(
                item.raw, namespace, replace(_UNGATED, is_served=view.offers, gang_sources=view.gang_sources)
            )
        except ConversionRefused as error:
            view.problems[pod.key] = str(error)
            return pod
        view.notice(item.source, f"Pod {item.key}", conversion.warnings)
        for template in conversion.templates:
            view.feed(read(item.source, kinds.RESOURCE_CLAIM_TEMPLATE, template))
        pod = read(item.source, kinds.POD, conversion.pod).object
    elif asks_for_cards(item.raw, view.plugin_offers):
        view.problems[pod.key] = f"Pod {pod.key}: {unconverted_namespace(namespace)}"
        return pod
    if problem := _refused_by_the_server(pod, view):
        view.problems[pod.key] = f"Pod {pod.key}: {problem}"
    return with_label_keys(pod)


def _refused_by_the_server(pod: Pod, view: SimulatedCluster) -> str:
    for entry in pod.spec.resource_claims:
        if (entry.resource_claim_name is None) == (entry.resource_claim_template_name is None):
            return f"spec.resourceClaims[{entry.name}]: give either resourceClaimName or resourceClaimTemplateName"
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for resource in {**container.resources.limits, **container.resources.requests}:
            if device_class := view.served_by(resource):
                return (
                    f'container "{container.name}" asks for {resource}, which stands for DeviceClass {device_class}: '
                    "kube-scheduler would serve it, and hami-dra keeps the devices from it; ask by a ResourceClaim, or let the "
                    "webhook convert the pod"
                )
    return ""


def units(waiting: Iterable[Pod], view: SimulatedCluster) -> list[tuple[Pod, ...]]:
    """Return the pods that are decided together, in order of the first of each. Their gangs know them already."""
    together: dict[object, list[Pod]] = {}
    for pod in waiting:
        together.setdefault(view.gangs.of(pod) or pod.key, []).append(pod)
    return [tuple(pods) for pods in together.values()]


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


@dataclass(frozen=True, slots=True)
class Placing:
    """Decisions on units."""

    view: SimulatedCluster
    report: SimulationReport = field(default_factory=SimulationReport)
    shared: SharedClaims = field(default_factory=SharedClaims)
    """Claim references of the pods that are not placed yet."""

    def in_order(self, waiting: list[tuple[Pod, ...]]) -> list[tuple[Pod, ...]]:
        """Return the units in the order in which they are decided: with preemption by descending
        priority, as in the queue.
        """
        if not self.view.settings.preemption:
            return waiting
        return sorted(waiting, key=lambda unit: -max(map(self.view.tenants.priority, unit)))

    def assess(self, pods: Sequence[Pod]) -> AssessedUnit[Unready]:
        gang = self.view.gangs.of(pods[0])
        state = self.view.gangs.state(gang) if gang is not None else None
        return assess_unit(pods[0], pods, state, self._assess, thorough=True)

    def _assess(self, pod: Pod) -> SchedulingRequest | Unready:
        if problem := self.view.problems.get(pod.key):
            return Unready(problem)
        answer = assess(pod, self.view, self.view.settings.assessment)
        match answer:
            case SchedulingRequest():
                return replace(answer, companions=self.shared.companions(pod, shared_claims(answer)))
            case Waiting():
                return Unready(answer.sentence(pod.key), answer.code)
            case Ignored() | Foreign():
                return Unready(f"Pod {pod.key}: {answer.why}")

    def decide(self, unit: AssessedUnit[Unready]) -> SimulatedDecision:
        """Decide as many pods as the unit needs at once, or none."""
        answer: UnitDecision | UnitRefusal
        if problem := problem_of(unit):
            answer = UnitRefusal(problem, Unschedulable(problem, error=problem), unit.pod.key, 0)
        else:
            answer = decide_unit(self.view.inventory, unit.unit, self.view.settings.options)
            if isinstance(answer, UnitRefusal) and unit.gang is not None:
                answer = answer.of_gang(unit.gang.key)
        gang = explained_gang(unit.gang, answer) if unit.gang is not None else None
        if isinstance(answer, UnitRefusal):
            refused = dict.fromkeys([pod.key for pod in unit.pods], answer.refusal)
            return SimulatedDecision((), refused, answer.message, gang)
        refused = {request.pod.key: refusal for request, refusal in answer.left}
        refused |= {key: Unschedulable(why.sentence, error=why.sentence) for key, why in unready(unit).items()}
        return SimulatedDecision(answer.placed, refused, "", gang, answer.domain)

    def _preempt(self, unit: AssessedUnit[Unready], decision: SimulatedDecision) -> SimulatedDecision:
        """Return the places that a refused unit gets by preemption; its victims are removed."""
        refusal = next(iter(decision.refused.values()), None)
        if decision.placed or refusal is None or not refusal.lacks_room or not self._may_preempt(unit):
            return decision
        plan = self.view.preemption(unit.unit).plan(unit.unit)
        if isinstance(plan, NoPlan):
            message = f"{refusal.message}; preemption does not help: {plan.sentence}"
            refused = dict.fromkeys(decision.refused, dataclasses.replace(refusal, message=message))
            return replace(decision, refused=refused, message=decision.message and message)
        self.report.preempted(plan)
        self.view.leave((*plan.victims, *plan.releasing))
        placed = {request.pod.key for request, _ in plan.placed}
        refused = {key: each for key, each in decision.refused.items() if key not in placed}
        return SimulatedDecision(plan.placed, refused)

    def _may_preempt(self, unit: AssessedUnit[Unready]) -> bool:
        preemptors = self.view.settings.preemptors
        named = preemptors is None or any(pod.key in preemptors for pod in unit.pods)
        return self.view.settings.preemption and named

    def place(self, pods: Sequence[Pod]) -> None:
        """Decide the unit, and count its pods where they are placed; then those of a gang for which others still go."""
        assessed = self.assess(pods)
        decision, placed = self._place(assessed), 0
        rest = assessed
        while rest.gang is not None and decision.placed and decision.refused and self._may_preempt(rest):
            placed += len(decision.placed)
            rest = self.assess([pod for pod in rest.pods if pod.key in decision.refused])
            decision = replace(self._place(rest), domain=decision.domain)
        if assessed.gang is not None:
            placed += len(decision.placed)
            message = "" if placed else decision.message
            self.report.gang(assessed.gang, placed=placed, domain=decision.domain, message=message)
        requests = {} if problem_of(rest) else {request.pod.key: request for request in rest.ready}
        for key, refusal in decision.refused.items():
            if (request := requests.get(key)) is not None:
                self._explain(request, decision.gang)
            self.report.refused(key, refusal)

    def _place(self, unit: AssessedUnit[Unready]) -> SimulatedDecision:
        decision = self._preempt(unit, self.decide(unit))
        # a member is explained among the others: it comes last
        for member, placed in sorted(decision.placed, key=lambda each: each[0].pod.key == self.view.settings.explained):
            pinned = replace(member, preferred_node=placed.node) if unit.gang is not None else member
            self._explain(pinned, decision.gang)
            self._carry_out(member, placed)
        return decision

    def _explain(self, request: SchedulingRequest, gang: GangExplanation | None) -> None:
        """Explain the decision if the pod is the one that was named."""
        if request.pod.key == self.view.settings.explained:
            explanation = explain(self.view.inventory, request, self.view.settings.options)
            self.report.explanation = with_gang(explanation, gang)

    def _carry_out(self, request: SchedulingRequest, decision: Decision) -> None:
        pod, settings = request.pod, self.view.settings
        self.shared.remove(pod.metadata.uid)
        for entry in decision.allocations:
            allocation = stamped(entry.allocation, settings.now, settings.new_share_id)
            self.view.allocate(entry.claim, allocation, pod)
        self.view.place(pod, decision.node)
        claims = [
            claim_entry(entry.pod_claim_name, entry.claim, self.view.allocation_of(entry.claim))
            for entry in request.claims
        ]
        self.report.placed(pod.key, decision.node, claims, decision.score)
