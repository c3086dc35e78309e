"""core/v1, scheduling.k8s.io and coordination.k8s.io objects: the fields needed to place a pod."""

from typing import Any

import msgspec

from hami_dra.api.meta import LOCAL_VOLUME, UNREADABLE, Condition, LabelSelector, Object, Struct
from hami_dra.api.podvolumes import Volume

QuantityText = str | int | float  # as users write it; parse with hami_dra.api.quantity.Quantity


class NodeSelectorRequirement(Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Struct, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Struct, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Struct, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Struct, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(Struct, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    """This and the next: the API server writes them into `label_selector` when it creates the pod."""
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Struct, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Struct, frozen=True):
    """Affinity to pods; anti-affinity has the same fields."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Struct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class TopologySpreadConstraint(Struct, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class ContainerClaim(Struct, frozen=True):
    """An entry of `resources.claims`: a claim of the pod, and optionally one of its requests."""

    name: str
    request: str = ""


class ResourceRequirements(Struct, frozen=True):
    limits: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    requests: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(Struct, frozen=True):
    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""
    """Empty in files that no API server has completed: TCP."""


class ContainerRestartRule(Struct, frozen=True):
    action: str = ""


class Container(Struct, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""
    """`Always` on an init container makes it a sidecar."""
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()


class PodResourceClaim(Struct, frozen=True):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGate(Struct, frozen=True):
    name: str


class PodSchedulingGroup(Struct, frozen=True):
    pod_group_name: str = ""
    """The PodGroup (`scheduling.k8s.io`) of the pod's namespace that the pod is a member of."""


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    active_deadline_seconds: int | None = None
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    resources: ResourceRequirements | None = None
    """Pod-level requests and limits; where set they replace the sum over containers."""
    host_network: bool = False
    host_users: bool | None = None
    volumes: tuple[Volume, ...] = ()
    local_volume: str = msgspec.field(default="", name=LOCAL_VOLUME)
    """Name of one whose data stays on the node, which is not in `volumes` then (`api.sharing`)."""
    scheduling_group: PodSchedulingGroup | None = None
    unreadable: str = msgspec.field(default="", name=UNREADABLE)
    """Why only a stub was kept (`api.oversized`): such a pod is not placed."""


class PodResourceClaimStatus(Struct, frozen=True):
    name: str
    resource_claim_name: str | None = None


class PodExtendedResourceClaimStatus(Struct, frozen=True):
    resource_claim_name: str = ""


class ResourcesInForce(Struct, frozen=True):
    """What kubelet has set up; None: it does not say."""

    requests: dict[str, QuantityText] | None = None


class ContainerStatus(Struct, frozen=True):
    """What kubelet says of one container's resources. They differ from the spec during an in-place resize only."""

    name: str = ""
    allocated_resources: dict[str, QuantityText] | None = None
    resources: ResourcesInForce | None = None


class PodStatus(Struct, frozen=True):
    phase: str = ""
    start_time: str | None = None
    """When the kubelet took it; None: it has not yet."""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    """Dropped on reading where they say what the spec says (`api.sharing`)."""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: dict[str, QuantityText] | None = None
    """Of the whole pod; kubelet says it of pods with pod-level resources."""
    resources: ResourcesInForce | None = None


class Pod(Object, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def port(self, name: str) -> int | None:
        """Return the number of its port with this name; None if it has none, or one that cannot be."""
        ports = (port for container in self.spec.containers for port in container.ports)
        number = next((each.container_port for each in ports if each.name == name), 0)
        return number if 0 < number < 1 << 16 else None


class NodeSpec(Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(default="", name="providerID")


class ContainerImage(Struct, frozen=True):
    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(Struct, frozen=True):
    allocatable: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    capacity: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    declared_features: tuple[str, ...] = ()
    images: tuple[ContainerImage, ...] = ()
    """What the kubelet reports: the 50 largest by default (nodeStatusMaxImages)."""


class Node(Object, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(Object, frozen=True):
    pass


class ResourceQuotaSpec(Struct, frozen=True):
    hard: dict[str, QuantityText] = msgspec.field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: dict[str, Any] | None = None


class ResourceQuota(Object, frozen=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class PriorityClass(Object, frozen=True):
    value: int = 0
    global_default: bool = False


class LeaseSpec(Struct, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()


class Secret(Object, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)
