"""One simulation: places the pods of the input in file order, each on top of those before it.

Called through `controller.insight.simulation`. First, everything that depends on the pod alone is
resolved for all pods (conversion, claims), because a pod that shares a claim must be placed where
the others fit too. Then the pods are decided one by one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from controller.insight.simulation.label_keys import with_label_keys
from controller.insight.simulation.objects import Raw, derived_uid, gather, read
from controller.insight.simulation.report import SimulationReport, claim_entry
from controller.insight.simulation.view import SimulatedCluster
from controller.insight.simulation.volume_claims import of_ephemeral_volumes
from controller.insight.simulation.workloads import Workloads
from controller.scheduling.allocation import FeatureGates, new_share_id, ownership_of, stamped
from controller.scheduling.decide import (
    Companions,
    Decision,
    Options,
    PodClaim,
    SchedulingRequest,
    SharedClaims,
    Unschedulable,
    decide,
)
from controller.scheduling.inventory import Heartbeat
from controller.scheduling.scoring import InvalidPolicy, Policies, resolve_policies
from controller.webhook import ConversionRefused, convert_pod
from controller.webhook import Options as ConvertOptions
from hami_dra.api import kinds
from hami_dra.api.core import Pod, PodResourceClaim
from hami_dra.api.podstate import is_finished, other_gates
from hami_dra.api.resource import ResourceClaim, ResourceClaimTemplate
from hami_dra.kube.documents import Document
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles
from hami_dra.vendors.registry import plugin_resources

_UNGATED: Final = ConvertOptions(gate=False)


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Settings of a simulation.

    `policies` are the defaults that annotations override; `first_fit` overrides both.
    """

    policies: Policies = Policies()
    first_fit: bool = False
    honor_preferences: bool = True
    """Nodes that a pod prefers come before those that the node policy prefers."""
    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
    """Schedulers whose pods hami-dra places; pods of others are not placed."""
    gates: FeatureGates = FeatureGates()
    kubernetes: tuple[int, int] | None = None
    """Version (major, minor) whose kube-scheduler is imitated; None: the newest that is known."""
    profiles: DriverProfiles = BUILT_IN_PROFILES
    """How devices of drivers that hami-dra does not ship are read."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time that the allocations carry."""
    new_share_id: Callable[[], str] = new_share_id

    @property
    def options(self) -> Options:
        """The options of its decisions."""
        return Options(first_fit=self.first_fit, honor_preferences=self.honor_preferences, gates=self.gates)


@dataclass(frozen=True, slots=True)
class Played:
    """The report, and the cluster after the simulation."""

    report: SimulationReport
    view: SimulatedCluster


OnPod = Callable[[int, int], None]
"""(pods decided, pods in total). Called after each pod, and often during a long decision; may raise
to stop.
"""


def _quiet(_done: int, _total: int) -> None:
    pass


def simulate(documents: Iterable[Document], settings: SimulationSettings, on_pod: OnPod = _quiet) -> SimulationReport:
    """Run a simulation. Raises BadManifest, and what `on_pod` raises."""
    return play(documents, settings, on_pod).report


def play(documents: Iterable[Document], settings: SimulationSettings, on_pod: OnPod = _quiet) -> Played:
    """Run a simulation and keep the cluster. Raises BadManifest, and what `on_pod` raises."""
    gathered = gather(documents)
    view = SimulatedCluster(settings.gates, settings.profiles, settings.kubernetes)
    for item in gathered.items:
        if item.kind is not kinds.POD and item.kind not in kinds.WORKLOADS:
            view.feed(item)
    view.assume_defaults()
    workloads = Workloads(gathered.items, view.nodes)
    pods: list[tuple[str, Raw]] = []
    for item in gathered.items:
        if item.kind is kinds.POD and not _has_its_place(item.object, view):
            pods.append((item.source, item.raw))
        elif item.kind in kinds.WORKLOADS:
            pods.extend((item.source, raw) for raw in workloads.pods_of(item))
    generate_volume_claims(pods, workloads, view)
    report = SimulationReport()
    waiting = [_settled(source, raw, view) for source, raw in pods]
    shared = SharedClaims()
    for each in waiting:
        if not each.problem and not other_gates(each.pod):
            shared.add(each.pod, _named_claims(each.pod))
    for done, each in enumerate(waiting):
        with view.inventory.verdicts.within(Heartbeat(partial(on_pod, done, len(waiting)))):
            _Placing(view, settings, report, shared).place(each)
        on_pod(done + 1, len(waiting))
    report.notes = [*gathered.notes, *view.notes]
    return Played(report, view)


def generate_volume_claims(pods: Iterable[tuple[str, Raw]], workloads: Workloads, view: SimulatedCluster) -> None:
    """Add the PersistentVolumeClaims that controllers would create for pods that no cluster has
    seen.

    A pod from a cluster has its claims there, or waits for them. Raises BadManifest.
    """
    claims = list(workloads.volume_claims)
    for source, raw in pods:
        pod: Pod = read(source, kinds.POD, raw).object
        if pod.metadata.uid == derived_uid(kinds.POD, pod.metadata.namespace, pod.metadata.name):
            claims += [(source, claim) for claim in of_ephemeral_volumes(pod, raw)]
    for source, claim in claims:
        view.generate_volume_claim(source, claim)


def asked_of(
    source: str, raw: Raw, view: SimulatedCluster, settings: SimulationSettings
) -> tuple[Pod, SchedulingRequest | str]:
    """Return the pod as the webhook converts it, and the input of `decide` in the view's cluster.

    A text in place of the demand says why the pod cannot be decided on. Raises BadManifest.
    """
    this = _settled(source, raw, view)
    try:
        return this.pod, _Placing(view, settings, SimulationReport(), SharedClaims()).request(this)
    except (_Unready, InvalidPolicy) as error:
        return this.pod, str(error)


def _has_its_place(pod: Pod, view: SimulatedCluster) -> bool:
    """Return whether the pod needs no decision.

    Running pods count on their node; finished and terminating ones need no node.
    """
    if is_finished(pod):
        return True
    if pod.spec.node_name:
        view.run(with_label_keys(pod))
        return True
    return pod.metadata.deletion_timestamp is not None


class _Unready(Exception):
    """The pod cannot be decided on; the message says what must change."""


@dataclass(slots=True)
class _Waiting:
    pod: Pod
    """The converted pod."""
    resources: tuple[str, ...] = ()
    """Extended resources that its claims replace."""
    problem: str = ""
    """Not empty: why the pod cannot be decided on."""


def _settled(source: str, raw: Raw, view: SimulatedCluster) -> _Waiting:
    """Return the pod as the webhook converts it. Raises BadManifest."""
    item = read(source, kinds.POD, raw)
    namespace = item.object.metadata.namespace
    if not view.is_converted(namespace):
        return _Waiting(with_label_keys(item.object))
    try:
        conversion = convert_pod(item.raw, namespace, _UNGATED)
    except ConversionRefused as error:
        return _Waiting(item.object, problem=str(error))
    view.notes.extend(f"{source}: Pod {item.key}: {warning}" for warning in conversion.warnings)
    for template in conversion.templates:
        view.feed(read(source, kinds.RESOURCE_CLAIM_TEMPLATE, template))
    return _Waiting(with_label_keys(read(source, kinds.POD, conversion.pod).object), conversion.resources)


def _named_claims(pod: Pod) -> list[str]:
    """Return the claims that other pods may name too."""
    named = (entry.resource_claim_name for entry in pod.spec.resource_claims)
    return [f"{pod.metadata.namespace}/{name}" for name in named if name]


class _Placing:
    """The decision on one pod. `shared`: claim references of the pods that are not placed yet."""

    def __init__(
        self, view: SimulatedCluster, settings: SimulationSettings, report: SimulationReport, shared: SharedClaims
    ) -> None:
        self._shared = shared
        self._view = view
        self._settings = settings
        self._report = report

    def place(self, this: _Waiting) -> None:
        key = this.pod.key
        try:
            request = self.request(this)
        except (_Unready, InvalidPolicy) as error:
            self._report.refused(key, {}, str(error), str(error))
            return
        answer = decide(self._view.inventory, request, self._settings.options)
        if isinstance(answer, Unschedulable):
            message = (
                answer.message
                if answer.error
                else "; ".join((answer.message, *_examples(answer), *answer.quotas, *answer.pools))
            )
            self._report.refused(key, answer.reasons, message, answer.error)
            return
        self._shared.remove(this.pod.metadata.uid)
        self._carry_out(this.pod, request, answer)

    def _carry_out(self, pod: Pod, request: SchedulingRequest, decision: Decision) -> None:
        for entry in decision.allocations:
            allocation = stamped(entry.allocation, self._settings.now, self._settings.new_share_id)
            self._view.allocate(entry.claim, allocation, pod)
        self._view.place(pod, decision.node)
        claims = [
            claim_entry(entry.pod_claim_name, entry.claim, self._view.allocation_of(entry.claim))
            for entry in request.claims
        ]
        self._report.placed(pod.key, decision.node, claims, decision.score)

    def request(self, this: _Waiting) -> SchedulingRequest:
        """Return the input of `decide`. Raises _Unready, InvalidPolicy."""
        pod = this.pod
        if this.problem:
            raise _Unready(this.problem)
        if pod.spec.scheduler_name not in self._settings.scheduler_names:
            raise _Unready(
                f"Pod {pod.key}: spec.schedulerName: it belongs to the scheduler {pod.spec.scheduler_name}, and hami-dra "
                f"places pods of {', '.join(sorted(self._settings.scheduler_names))}"
            )
        if gates := other_gates(pod):
            raise _Unready(f"Pod {pod.key}: spec.schedulingGates: waits for {', '.join(gates)}")
        self._check_extended_resources(pod)
        if (held := self._view.inventory.held(pod)) is not None:
            raise _Unready(f"Pod {pod.key}: {held.sentence}")
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
            raise _Unready(f"{where}: give either resourceClaimName or resourceClaimTemplateName")
        if entry.resource_claim_name is not None:
            claim = self._view.claims.get(f"{namespace}/{entry.resource_claim_name}")
            if claim is None:
                raise _Unready(f"{where}: ResourceClaim {namespace}/{entry.resource_claim_name} does not exist")
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
            missing = f"ResourceClaimTemplate {namespace}/{entry.resource_claim_template_name}"
            raise _Unready(f"{where}: {missing} does not exist")
        return self._view.claim_of(template, pod, entry.name), template.object

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
                    raise _Unready(
                        f'Pod {pod.key}: container "{container.name}" asks for {resource}, which stands for DeviceClass '
                        f"{device_class}: kube-scheduler would serve it, and hami-dra keeps the devices from it; ask by a "
                        "ResourceClaim, or let the webhook convert the pod"
                    )


def _examples(answer: Unschedulable) -> list[str]:
    """Return why some nodes are refused, unless the message says so already."""
    return [sentence for sentence in answer.examples.values() if sentence not in answer.message]
