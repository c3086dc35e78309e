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
from controller.assessment import Foreign, Ignored, Waiting, assess, shared_claims
from controller.decide import (
    Decision,
    SchedulingRequest,
    SharedClaims,
    Unschedulable,
    decide,
)
from controller.gangs import (
    GangKey,
    GangRequest,
    GangState,
    GangUnschedulable,
    constraints_of,
    decide_gang,
)
from controller.insight.explain import explain, explained_gang, refused_gang, with_gang
from controller.insight.manifests import Raw, read
from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.report import SimulationReport, claim_entry
from controller.insight.simulation.settings import SimulationSettings
from controller.insight.simulation.view import SimulatedCluster
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


class Unit(Struct, frozen=True):
    """What is decided at once: one pod, or the members of a gang that wait."""

    members: tuple[WaitingPod, ...]
    gang: GangKey | None = None


def units(waiting: Iterable[WaitingPod], view: SimulatedCluster) -> list[Unit]:
    """Return the pods that are decided together, in order of the first of each. Their gangs know them already."""
    together: dict[object, tuple[GangKey | None, list[WaitingPod]]] = {}
    for each in waiting:
        gang = view.gangs.of(each.pod)
        together.setdefault(gang or each.pod.key, (gang, []))[1].append(each)
    return [Unit(tuple(members), gang) for gang, members in together.values()]


class Unready(Struct, frozen=True):
    """Why a pod cannot be decided on."""

    sentence: str
    code: str = ""
    """Reason code, where no node can have the pod whatever is free."""


class AssessedUnit(Struct, frozen=True):
    keys: tuple[str, ...]
    """Of all members."""
    requests: tuple[SchedulingRequest, ...]
    """Of those that can be decided on."""
    unready: Mapping[str, Unready]
    """By key, those that cannot."""
    problem: str = ""
    """Not empty: why none of them can be placed."""
    gang: GangState | None = None

    def request_of(self, key: str) -> SchedulingRequest | None:
        return None if self.problem else next((each for each in self.requests if each.pod.key == key), None)


class UnitDecision(Struct, frozen=True):
    """Each member is either placed or refused."""

    placed: tuple[tuple[SchedulingRequest, Decision], ...] = ()
    refused: Mapping[str, Unschedulable] = MappingProxyType({})
    """By key; all members of a gang with the same words where none is placed (`message`)."""
    message: str = ""
    """Why a gang is not placed."""
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

    def assess(self, unit: Unit) -> AssessedUnit:
        answers = {member.pod.key: self._assess(member) for member in unit.members}
        requests = tuple([each for each in answers.values() if isinstance(each, SchedulingRequest)])
        unready = {key: each for key, each in answers.items() if isinstance(each, Unready)}
        first = next((each.sentence for each in unready.values()), "")
        if unit.gang is None:
            return AssessedUnit(tuple(answers), requests, unready, first)
        state = self._view.gangs.state(unit.gang)
        problem = state.problem or state.incomplete
        if not problem and len(requests) < state.least:
            problem = f"{state.key}: {first}"
        return AssessedUnit(tuple(answers), requests, unready, problem, state)

    def _assess(self, this: WaitingPod) -> SchedulingRequest | Unready:
        if this.problem:
            return Unready(this.problem)
        key, answer = this.pod.key, assess(this.pod, self._view, self._settings.assessment)
        match answer:
            case SchedulingRequest():
                return replace(answer, companions=self._shared.companions(this.pod, shared_claims(answer)))
            case Waiting():
                return Unready(answer.sentence(key), answer.code)
            case Ignored() | Foreign():
                return Unready(f"Pod {key}: {answer.why}")

    def decide(self, unit: AssessedUnit) -> UnitDecision:
        if unit.gang is not None:
            return self._decide_gang(unit, unit.gang)
        if unit.problem:
            return UnitDecision(refused=_unready(unit))
        (request,) = unit.requests
        answer = decide(self._view.inventory, request, self._settings.options)
        if isinstance(answer, Unschedulable):
            return UnitDecision(refused={request.pod.key: answer})
        return UnitDecision(((request, answer),))

    def _decide_gang(self, unit: AssessedUnit, state: GangState) -> UnitDecision:
        """Decide as many members as the gang needs at once, or none."""
        if unit.problem:
            refusal = Unschedulable(unit.problem, error=unit.problem)
            gang = explained_gang(state, {}, message=unit.problem)
            return UnitDecision((), dict.fromkeys(unit.keys, refusal), unit.problem, gang)
        nodes_in_use = tuple(sorted({pod.spec.node_name for pod in state.members} - {""}))
        topology = constraints_of(state, unit.requests)
        request = GangRequest(state.key, unit.requests, state.least, topology, nodes_in_use)
        answer = decide_gang(self._view.inventory, request, self._settings.options)
        if isinstance(answer, GangUnschedulable):
            message = f"{state.key}: {answer.message}"
            refusal = dataclasses.replace(
                answer.refusal, message=message, error=answer.refusal.error and message, reason=answer.reason
            )
            gang = refused_gang(state, answer, message)
            return UnitDecision((), dict.fromkeys(unit.keys, refusal), message, gang)
        refused = {member.pod.key: refusal for member, refusal in answer.left} | _unready(unit)
        nodes = {member.pod.key: decision.node for member, decision in answer.placed}
        gang = explained_gang(state, nodes, domain=answer.domain, domains=answer.domains)
        return UnitDecision(answer.placed, refused, "", gang, answer.domain)

    def place(self, unit: Unit) -> None:
        """Decide the unit, and count its pods where they are placed."""
        assessed = self.assess(unit)
        decision = self.decide(assessed)
        if assessed.gang is not None:
            self._report.gang(
                assessed.gang, placed=len(decision.placed), domain=decision.domain, message=decision.message
            )
        # a member is explained among the others: it comes last
        for member, placed in sorted(decision.placed, key=lambda each: each[0].pod.key == self._settings.explained):
            pinned = replace(member, preferred_node=placed.node) if assessed.gang is not None else member
            self._explain(pinned, decision.gang)
            self._carry_out(member, placed)
        for key, refusal in decision.refused.items():
            if (request := assessed.request_of(key)) is not None:
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


def _unready(unit: AssessedUnit) -> dict[str, Unschedulable]:
    return {key: Unschedulable(each.sentence, error=each.sentence) for key, each in unit.unready.items()}
