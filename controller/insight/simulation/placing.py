"""Decides one pod of a simulation, or the members of a gang together, and reports it. Pure.

Called by `run`, and by explanations for the input of one decision.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from controller.insight.explain import GangExplanation, explain, explained_gang, refused_gang, with_gang
from controller.insight.manifests import Raw, read
from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.report import SimulationReport, claim_entry
from controller.insight.simulation.view import SimulatedCluster
from controller.scheduling.allocation import FeatureGates, new_share_id, ownership_of, stamped
from controller.scheduling.decide import (
    Companions,
    Decision,
    Options,
    PodClaim,
    SchedulingRequest,
    SharedClaims,
    Unfinished,
    Unschedulable,
    decide,
)
from controller.scheduling.gangs import (
    GangRequest,
    GangState,
    GangUnschedulable,
    Source,
    constraints_of,
    decide_gang,
)
from controller.scheduling.scoring import InvalidPolicy, Policies, resolve_policies
from controller.webhook import ConversionRefused, asks_for_cards, convert_pod, unconverted_namespace
from controller.webhook import Options as ConvertOptions
from hami_dra.api import kinds
from hami_dra.api.core import Pod, PodResourceClaim
from hami_dra.api.podclaims import claim_refs, is_created_by_us, missing_object
from hami_dra.api.podstate import other_gates
from hami_dra.api.resource import ResourceClaim, ResourceClaimTemplate
from hami_dra.api.served_pods import unserved_scheduler
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles
from hami_dra.vendors.registry import plugin_resources

_UNGATED: Final = ConvertOptions(gate=False, schedulers=())


class SimulationSettings(Struct, frozen=True):
    """Settings of a simulation.

    `policies` are the defaults that annotations override; `first_fit` overrides both.
    """

    policies: Policies = Policies()
    first_fit: bool = False
    honor_preferences: bool = True
    """Nodes that a pod prefers come before those that the node policy prefers."""
    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
    """Schedulers whose pods hami-dra places; pods of others are not placed."""
    gang_sources: frozenset[Source] | None = None
    """Optional kinds of groups of pods that count as gangs; None: not known, so none does."""
    gates: FeatureGates = FeatureGates()
    kubernetes: tuple[int, int] | None = None
    """Version (major, minor) whose kube-scheduler is imitated; None: the newest that is known."""
    profiles: DriverProfiles = BUILT_IN_PROFILES
    """How devices of drivers that hami-dra does not ship are read."""
    explained: str = ""
    """`ns/name` of the pod whose decision is explained as well; empty: none."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time that the allocations carry."""
    new_share_id: Callable[[], str] = new_share_id

    @property
    def options(self) -> Options:
        """The options of its decisions."""
        return Options(first_fit=self.first_fit, honor_preferences=self.honor_preferences, gates=self.gates)


class Unready(Exception):
    """The pod cannot be decided on; the message says what must change."""


class WaitingPod(Struct):
    pod: Pod
    """The converted pod."""
    resources: tuple[str, ...] = ()
    """Extended resources that its claims replace."""
    problem: str = ""
    """Not empty: why the pod cannot be decided on."""


def settled(source: str, raw: Raw, view: SimulatedCluster) -> WaitingPod:
    """Return the pod as the webhook converts it. Raises BadManifest."""
    item = read(source, kinds.POD, raw)
    namespace = item.object.metadata.namespace
    if not view.is_converted(namespace):
        if asks_for_cards(item.raw, view.plugin_offers):
            return WaitingPod(item.object, problem=f"Pod {item.key}: {unconverted_namespace(namespace)}")
        return WaitingPod(with_label_keys(item.object))
    try:
        conversion = convert_pod(
            item.raw, namespace, replace(_UNGATED, is_served=view.offers, gang_sources=view.gang_sources)
        )
    except ConversionRefused as error:
        return WaitingPod(item.object, problem=str(error))
    view.notice(source, f"Pod {item.key}", conversion.warnings)
    for template in conversion.templates:
        view.feed(read(source, kinds.RESOURCE_CLAIM_TEMPLATE, template))
    return WaitingPod(with_label_keys(read(source, kinds.POD, conversion.pod).object), conversion.resources)


class Placing:
    """The decision on one pod. `shared`: claim references of the pods that are not placed yet."""

    def __init__(
        self, view: SimulatedCluster, settings: SimulationSettings, report: SimulationReport, shared: SharedClaims
    ) -> None:
        self._shared = shared
        self._view = view
        self._settings = settings
        self._report = report

    def place(self, this: WaitingPod) -> None:
        key = this.pod.key
        request = self.asked(this)
        if isinstance(request, str):
            self._report.refused(key, request, request)
            return
        answer = decide(self._view.inventory, request, self._settings.options)
        self._explain([request], answer)
        if isinstance(answer, Unschedulable):
            self._refuse(key, answer)
            return
        self._carry_out(this.pod, request, answer)

    def place_gang(self, state: GangState, members: list[WaitingPod]) -> None:
        """Place as many members as the gang needs at once, or none."""
        request, unready = self.gang_request(state, members)
        if isinstance(request, str):
            self._refuse_gang(state, members, Unschedulable(request, error=request))
            return
        answer = decide_gang(self._view.inventory, request, self._settings.options)
        assert not isinstance(answer, Unfinished), "a heartbeat ends no search"
        if isinstance(answer, GangUnschedulable):
            message = f"{state.key}: {answer.message}"
            gang = refused_gang(state, answer, message)
            self._explain(request.members, gang=gang)
            self._refuse_gang(
                state,
                members,
                dataclasses.replace(
                    answer.refusal, message=message, error=answer.refusal.error and message, reason=answer.reason
                ),
            )
            return
        self._report.gang(state, placed=len(answer.placed), domain=answer.domain)
        nodes = {member.pod.key: decision.node for member, decision in answer.placed}
        gang = explained_gang(state, nodes, domain=answer.domain, domains=answer.domains)
        # a member is explained among the others: it comes last
        for member, decision in sorted(answer.placed, key=lambda each: each[0].pod.key == self._settings.explained):
            self._explain([replace(member, preferred_node=decision.node)], gang=gang)
            self._carry_out(member.pod, member, decision)
        self._explain([member for member, _ in answer.left], gang=gang)
        for member, refusal in answer.left:
            self._refuse(member.pod.key, refusal)
        for key, why in unready.items():
            self._report.refused(key, why, why)

    def asked(self, this: WaitingPod) -> SchedulingRequest | str:
        """Return the input of `decide`, or why the pod cannot be decided on."""
        try:
            return self.request(this)
        except (Unready, InvalidPolicy) as error:
            return str(error)

    def gang_request(self, state: GangState, members: list[WaitingPod]) -> tuple[GangRequest | str, dict[str, str]]:
        """Return the input of `decide_gang`, and by key why members are not in it.

        A text in place of the input says why the gang cannot be decided on.
        """
        asked = {each.pod.key: self.asked(each) for each in members}
        ready = [each for each in asked.values() if not isinstance(each, str)]
        unready = {key: each for key, each in asked.items() if isinstance(each, str)}
        problem = state.problem or state.incomplete
        if not problem and len(ready) < state.least:
            problem = f"{state.key}: {next(iter(unready.values()))}"
        settled_nodes = tuple(sorted({pod.spec.node_name for pod in state.members} - {""}))
        topology = constraints_of(state, ready)
        request = GangRequest(state.key, tuple(ready), min(state.least, len(ready)), topology, settled_nodes)
        return problem or request, unready

    def _explain(
        self,
        requests: Sequence[SchedulingRequest],
        answer: Decision | Unschedulable | None = None,
        *,
        gang: GangExplanation | None = None,
    ) -> None:
        """Explain the decision if the pod is the one that was named. `answer`: if it was decided."""
        for each in requests:
            if each.pod.key == self._settings.explained:
                found = explain(self._view.inventory, each, self._settings.options, answer=answer)
                self._report.explanation = with_gang(found, gang)

    def _refuse_gang(self, state: GangState, members: list[WaitingPod], refusal: Unschedulable) -> None:
        self._report.gang(state, placed=0, message=refusal.message)
        for each in members:
            self._refuse(each.pod.key, refusal)

    def _refuse(self, key: str, answer: Unschedulable) -> None:
        self._report.refused(key, answer.message, answer.error, answer.reasons, answer.reason)

    def _carry_out(self, pod: Pod, request: SchedulingRequest, decision: Decision) -> None:
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

    def request(self, this: WaitingPod) -> SchedulingRequest:
        """Return the input of `decide`. Raises Unready, InvalidPolicy."""
        pod = this.pod
        if this.problem:
            raise Unready(this.problem)
        if note := unserved_scheduler(pod.spec.scheduler_name, self._settings.scheduler_names):
            raise Unready(f"Pod {pod.key}: {note}")
        if gates := other_gates(pod):
            raise Unready(f"Pod {pod.key}: spec.schedulingGates: waits for {', '.join(gates)}")
        self._check_extended_resources(pod)
        if (held := self._view.inventory.held(pod)) is not None:
            raise Unready(f"Pod {pod.key}: {held.sentence}")
        claims: list[PodClaim] = []
        templates: dict[str, ResourceClaimTemplate] = {}
        for entry in pod.spec.resource_claims:
            found = self._claim(pod, entry)
            if found is not None:
                claim, template = found
                claims.append(PodClaim(entry.name, claim))
                self._view.allow_admin_access(claim)
                if template is not None:
                    templates[claim.key] = template
        policies = resolve_policies(
            pod, [entry.claim for entry in claims], templates, self._view.classes, self._settings.policies
        )
        return SchedulingRequest(
            pod=pod,
            claims=tuple(claims),
            policies=policies,
            preferred_node=pod.status.nominated_node_name,
            required_node=pod.spec.node_name,
            companions=self._companions(pod, claims),
            plugin_resources=(*this.resources, *self._plugin_resources(claims)),
        )

    def _plugin_resources(self, claims: Iterable[PodClaim]) -> tuple[str, ...]:
        """Return the device plugins' names for the cards that open claims may get.

        Upstream knows no such rule, so first-fit ignores it.
        """
        if self._settings.first_fit:
            return ()
        drivers = [
            ownership_of(self._view.inventory, entry.claim, None, self._settings.gates).drivers
            for entry in claims
            if entry.claim.status.allocation is None
        ]
        return plugin_resources(frozenset[str]().union(*drivers))

    def _claim(self, pod: Pod, entry: PodResourceClaim) -> tuple[ResourceClaim, ResourceClaimTemplate | None] | None:
        """Return the claim of an entry and the template it is generated from.

        Returns None if the pod's status says that no claim is needed.
        """
        where = f"Pod {pod.key}: spec.resourceClaims[{entry.name}]"
        namespace = pod.metadata.namespace
        if (entry.resource_claim_name is None) == (entry.resource_claim_template_name is None):
            raise Unready(f"{where}: give either resourceClaimName or resourceClaimTemplateName")
        if entry.resource_claim_name is not None:
            claim = self._view.claims.get(f"{namespace}/{entry.resource_claim_name}")
            if claim is None:
                raise Unready(
                    self._missing(pod, entry.name, "ResourceClaim", f"{namespace}/{entry.resource_claim_name}")
                )
            return claim, None
        template = self._view.templates.get(f"{namespace}/{entry.resource_claim_template_name}")
        generated = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        if entry.name in generated:
            name = generated[entry.name]
            if name is None:
                return None
            claim = self._view.claims.get(f"{namespace}/{name}")
            if claim is not None:
                return claim, template.object if template else None
        if template is None:
            key = f"{namespace}/{entry.resource_claim_template_name}"
            raise Unready(self._missing(pod, entry.name, "ResourceClaimTemplate", key))
        return self._view.claim_of(template, pod, entry.name), template.object

    def _missing(self, pod: Pod, entry: str, kind: str, key: str) -> str:
        if any(ref.pod_claim_name == entry and is_created_by_us(pod, ref) for ref in claim_refs(pod)):
            return (
                f"Pod {pod.key}: spec.resourceClaims[{entry}]: {kind} {key} is not created yet; the controller creates "
                "it. Run: hami-dra doctor"
            )
        return f"Pod {pod.key}: {missing_object(entry, kind, key)}"

    def _companions(self, pod: Pod, claims: Iterable[PodClaim]) -> tuple[Companions, ...]:
        """Return the other pods that wait for a claim that this pod would get allocated.

        The node should fit them too.
        """
        keys = [claim.claim.key for claim in claims if claim.claim.status.allocation is None]
        return self._shared.companions(pod, [key for key in keys if key in self._view.claims])

    def _check_extended_resources(self, pod: Pod) -> None:
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            for resource in {**container.resources.limits, **container.resources.requests}:
                if device_class := self._view.served_by(resource):
                    raise Unready(
                        f'Pod {pod.key}: container "{container.name}" asks for {resource}, which stands for DeviceClass '
                        f"{device_class}: kube-scheduler would serve it, and hami-dra keeps the devices from it; ask by a "
                        "ResourceClaim, or let the webhook convert the pod"
                    )
