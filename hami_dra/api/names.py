"""All public names: drivers, annotations, labels, taints, policies, reason codes.

Sources: HAMi's annotations and reason codes (pkg/device/common), Kubernetes' well-known names.
"""

from collections.abc import Mapping
from enum import Flag, auto
from types import MappingProxyType
from typing import Final

DOMAIN: Final = "hami.io"
CONFIG_API_VERSION: Final = "hami.io/v1alpha1"
"""Of our own configuration kinds."""

# --- annotations and labels on pods, claims, templates and classes --------------------------------
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
DEVICE_POLICY: Final = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"
PACKING_WEIGHTS: Final = "hami.io/packing-weights"
"""Weights of the terms of `fair-share`, and how strongly scarce cards are preserved (docs/policies.md)."""
GPU_TOPOLOGY: Final = "hami.io/gpu-topology"
"""`required`: several cards only if the fast interconnect joins all of them; `preferred`: no such filter."""
NUMA_BIND: Final = "nvidia.com/numa-bind"
"""`true`: all cards of one request on one NUMA node (HAMi's name)."""
DRA_LABEL: Final = "hami.io/dra"
"""Label `"true"`: hami-dra allocates this pod's claims, so it may be gated."""
WEBHOOK_LABEL: Final = "hami.io/webhook"
"""Label `ignore` on a pod or namespace: the webhook leaves it unchanged (HAMi's opt-out). The
chart's opt-in: `enabled` on a namespace.
"""
CONVERTED_REQUEST: Final = "hami.io/converted-request"
"""Annotation on a converted pod: its normalised request as JSON, from which a missing template is recreated."""
TEMPLATE_HASH_LABEL: Final = "hami.io/request-hash"
DAEMONSET_LABEL: Final = "hami.io/daemonset"
"""On the chart's drivers and their pods: which DaemonSet, of which each vendor and simulated machine has one."""

# --- what the controller leaves behind in the cluster ---------------------------------------------
GATE: Final = "hami.io/allocation"
FENCE_TAINT: Final = "hami.io/controller-allocates"
CORDON_TAINT: Final = "hami.io/cordoned"
"""Key of the taint on a card that an operator cordoned."""
DEVICE_CORDON: Final = "hami.io/device-cordon"
"""Annotation on a Node: the cards that its drivers must cordon, by index or UUID, comma-separated."""
DEFRAG: Final = "hami.io/defrag"
"""Annotation on a Node: what `hami-dra defrag --execute` has cordoned there until its moves are done."""
MOVABLE: Final = "hami.io/movable"
"""Label `"true"` on a pod or namespace: `hami-dra defrag --execute` may move the pods."""
SPARE: Final = "hami.io/spare"
"""Label `"true"` on a Node: its devices are held back for preemptible pods and the repair of gangs."""
LOST_TAINT: Final = "hami.io/lost"
"""This and the next three: taint keys of a faulty card, one per kind of fault; the value names the fault (`xid-79`)."""
XID_TAINT: Final = "hami.io/xid"
MEMORY_ERROR_TAINT: Final = "hami.io/memory-error"
UNHEALTHY_TAINT: Final = "hami.io/unhealthy"
ALLOCATION_MARK: Final = "hami.io"
"""Driver name of the opaque configuration in an allocation that says who made it
(`hami_dra.api.allocator`); no driver has this name.
"""
HELD_CLAIMS: Final = "hami.io/held-claims"
"""On a ResourceSlice of a node driver: what it holds for deleted claims (`hami_dra.api.heldclaims`)."""
NODE_LACKS: Final = "hami.io/node-lacks"
"""On a ResourceSlice of a node driver: what containers on the node would lack (`hami_dra.api.nodelacks`)."""
QUOTA_USED: Final = "hami.io/quota-used"
"""On a ResourceQuota: JSON, key for cards (`limits.nvidia.com/gpumem`) → amount used, in the unit of the key."""
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
DELETION_COST: Final = "hami.io/deletion-cost"
"""On a pod of a ReplicaSet: the cost that hami-dra wrote; one that differs is someone else's."""
FLEET_LABEL: Final = "hami.io/fleet"
"""On the nodes and slices of a simulated fleet: its name."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "hami-dra"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
"""Its value is `MANAGED_BY`, because Helm uses the managed-by label itself."""
PROBE_LABEL: Final = "hami.io/probe"
"""On the objects that test the fence; no other pod or claim carries it."""
FENCE_PROVEN: Final = "hami.io/fence-proven"
"""Annotation on a fence rule: `uid/generation` of the rule that a probe claim was seen to respect."""
FENCE_FINALIZER: Final = "hami.io/fence"
"""On a fence rule: its deletion waits until the controller has created a replacement."""
LEAVING_UNTIL: Final = "hami.io/leaving-until"
"""Annotation on the controller's lease: `hami-dra uninstall` is running; no controller acts before this time."""
STALLED_DECISIONS: Final = "hami.io/stalled-decisions"
"""Annotation on the controller's lease: JSON, the pods whose decision stalled a leader; the next
leader postpones them.
"""
HELD_PLACES: Final = "hami.io/held-places"
"""Annotation on the controller's lease: JSON, the places that the leader holds for units, for `hami-dra status`."""
DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: the entry of its pod's spec.resourceClaims that it belongs to."""
ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"

# --- groups of pods: labels and annotations of pods ------------------------------------------------
COSCHEDULING_GROUP: Final = "scheduling.x-k8s.io/pod-group"
"""Label: the PodGroup of coscheduling (scheduler-plugins) of which the pod is a member."""
POD_GROUP_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
POD_GROUP_MIN_AVAILABLE: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
"""Labels: a group without an object, and how many of its pods must run at once."""
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_GROUP_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
"""Label and annotation: a group of plain pods of Kueue, and its size."""
KUEUE_REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
"""Annotations: the label of the nodes on which all pods of the group must, or should, agree."""
GANG_TOPOLOGY_KEY: Final = "hami.io/gang-topology-key"
"""Annotation on a member: the label of nodes on which all members of its gang should agree."""
LEADER_WORKER_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-key"
LEADER_WORKER_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
"""Label and annotation: one leader with its workers, and how many pods they are."""
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
"""Label: the JobSet whose Jobs make the pod."""
VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"
"""Annotation: the PodGroup of Volcano of which the pod is a member."""
NVLINK_CLIQUE: Final = "nvidia.com/gpu.clique"
"""Label of nodes: the NVLink cluster and the clique of their cards, `<cluster UUID>.<clique>`."""
ATTR_CLUSTER: Final = "clusterUUID"
"""In the driver's domain: the NVLink domain of a card, as NVML names it."""
ATTR_CLIQUE: Final = "cliqueID"
"""In the driver's domain: the partition of that NVLink domain, a number."""

# --- annotations of pods about preemption ---------------------------------------------------------
PREEMPTIBLE: Final = "hami.io/preemptible"
"""Annotation on a pod; "false": it is never evicted to make room; "true": it may use spares."""
MIN_RUNTIME: Final = "hami.io/min-runtime"
"""Annotation on a pod: how long it runs at least before it may be evicted to make room (`90s`, `2h`)."""
PREEMPTION_DELAY: Final = "hami.io/preemption-delay"
"""Annotation on a pod: how long no pod is evicted for it, so that an autoscaler may act first (`90s`, `2h`)."""
QUOTA_LABEL: Final = "hami.io/quota"
GUARANTEE: Final = "guarantee"
"""Value of this label on a ResourceQuota: it says what its namespace is owed, and limits nothing."""

# --- annotations of Kubernetes' volumes -----------------------------------------------------------
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
"""On a PersistentVolumeClaim: its binding to `spec.volumeName` is complete."""
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""On a PersistentVolumeClaim: the node for which kube-scheduler asked for provisioning."""
BETA_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
"""On a PersistentVolume or its claim: the StorageClass, in place of the field of the spec."""
MIGRATED_PLUGINS: Final = "storage.alpha.kubernetes.io/migrated-plugins"
"""On a CSINode: the in-tree volume plugins that CSI drivers replace there."""
DEFAULT_STORAGE_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
BETA_DEFAULT_STORAGE_CLASS: Final = "storageclass.beta.kubernetes.io/is-default-class"
"""Annotations on a StorageClass; "true": claims that name no class get it at their creation."""


# --- annotations that are read ---------------------------------------------------------------------
class Read(Flag):
    """What an annotation is read for. All others are dropped where objects are decoded."""

    FOR_PEOPLE = 0
    """Shown, or for hami-dra's own programs."""
    TENANT = auto()
    """Of a pod, claim or template."""
    USER = auto()
    """People write it on pods, claims, templates and classes to choose how hami-dra places them."""
    DECISION = auto()
    """It affects decisions, and is therefore in a snapshot."""
    POLICY = auto()
    """It has a policy or weights, which are short."""
    GANG = auto()
    """It says which gang a pod belongs to, or how large that is."""
    PLACES = auto()
    """On a pod with claims it makes hami-dra place the pod; manifests/gate-policy.yaml names it, too."""


_POLICY: Final = Read.TENANT | Read.USER | Read.DECISION | Read.POLICY | Read.PLACES
ANNOTATIONS: Final[Mapping[str, Read]] = {
    NODE_POLICY: _POLICY,
    DEVICE_POLICY: _POLICY,
    SCORING_WEIGHTS: _POLICY,
    PACKING_WEIGHTS: _POLICY,
    GPU_TOPOLOGY: Read.TENANT | Read.USER | Read.DECISION | Read.PLACES,
    GANG_TOPOLOGY_KEY: Read.TENANT | Read.USER | Read.DECISION | Read.GANG,
    KUEUE_GROUP_SIZE: Read.TENANT | Read.DECISION | Read.GANG,
    KUEUE_REQUIRED_TOPOLOGY: Read.TENANT | Read.DECISION | Read.GANG,
    KUEUE_PREFERRED_TOPOLOGY: Read.TENANT | Read.DECISION | Read.GANG,
    LEADER_WORKER_SIZE: Read.TENANT | Read.DECISION | Read.GANG,
    VOLCANO_GROUP: Read.TENANT | Read.DECISION | Read.GANG,
    PREEMPTIBLE: Read.TENANT | Read.USER | Read.DECISION,
    MIN_RUNTIME: Read.TENANT | Read.USER | Read.DECISION,
    PREEMPTION_DELAY: Read.TENANT | Read.USER | Read.DECISION,
    POD_DELETION_COST: Read.TENANT,
    DELETION_COST: Read.TENANT,
    CONVERTED_REQUEST: Read.TENANT | Read.DECISION,
    BIND_COMPLETED: Read.TENANT | Read.DECISION,
    SELECTED_NODE: Read.TENANT | Read.DECISION,
    BETA_STORAGE_CLASS: Read.TENANT | Read.DECISION,
    DEFAULT_STORAGE_CLASS: Read.TENANT | Read.DECISION,
    BETA_DEFAULT_STORAGE_CLASS: Read.TENANT | Read.DECISION,
    MIGRATED_PLUGINS: Read.DECISION,
    DEVICE_CORDON: Read.DECISION,
    DEFRAG: Read.DECISION,
    FENCE_PROVEN: Read.DECISION,
    HELD_CLAIMS: Read.DECISION,
    NODE_LACKS: Read.TENANT,
    QUOTA_USED: Read.FOR_PEOPLE,
    LEAVING_UNTIL: Read.FOR_PEOPLE,
    STALLED_DECISIONS: Read.FOR_PEOPLE,
    HELD_PLACES: Read.FOR_PEOPLE,
}
"""Every annotation that is read of a decoded object, but for those that vendors read (`Vendor.annotations`)."""


def annotations_read(use: Read) -> frozenset[str]:
    return frozenset(name for name, uses in ANNOTATIONS.items() if use in uses)


# --- objects of an installation (manifests/) ------------------------------------------------------
SYSTEM_NAMESPACE: Final = "hami-dra-system"
PROBE_NAMESPACE: Final = "hami-dra-probe"
PROBE: Final = "hami-dra-probe"
"""Name of the pod, the claim and the class that test whether the fence holds."""
PROBE_IMAGE: Final = "registry.k8s.io/pause:3.10"
CONTROLLER: Final = "hami-dra-controller"
"""Name of its ServiceAccount, roles and lease."""
WEBHOOK: Final = "hami-dra-webhook"
"""Name of its ServiceAccount, roles, Service and webhook configurations."""
DRIVER: Final = "hami-dra-driver"
UNINSTALL: Final = "hami-dra-uninstall"
WEBHOOK_CERTIFICATE: Final = "hami-dra-webhook-certificate"
"""Name of the objects for a webhook that issues its own certificates: a Secret, roles and their bindings."""
WEBHOOK_SECRET: Final = WEBHOOK_CERTIFICATE
GATE_POLICY: Final = "gate.hami.io"
"""Name of the MutatingAdmissionPolicy and of its binding."""
PROTECT_POLICY: Final = "protect.hami.io"
"""Name of the MutatingAdmissionPolicy, and of its binding, that gives generated claims their finalizer."""
FENCE_POLICY: Final = "fence.hami.io"
"""Name of the ValidatingAdmissionPolicy and of its binding."""
CLAIM_POLICY: Final = "claims.hami.io"
"""Name of the ValidatingAdmissionPolicy, and of its binding, that prevents deallocation and
deletion of claims under their pods.
"""
SLICE_POLICY: Final = "slices.hami.io"
"""Name of the ValidatingAdmissionPolicy, and of its binding, that restricts a driver to the slices of its own node."""
TOKEN_POLICY: Final = "tokens.hami.io"  # noqa: S105 (the name of a policy)
"""Name of the policy that no Secret in the system namespace becomes a token of another account."""
EVENT_POLICY: Final = "events.hami.io"
"""Name of the policy that controller and driver report events under their own names only."""
TRUST_POLICY: Final = "webhook-trust.hami.io"
"""Name of the policy that the webhook changes nothing but `caBundle` in its configurations."""
CONTROLLER_PODS_POLICY: Final = "controller-pods.hami.io"
CONTROLLER_MARKS_POLICY: Final = "controller-marks.hami.io"
CONTROLLER_TEMPLATES_POLICY: Final = "controller-templates.hami.io"
CONTROLLER_FENCE_POLICY: Final = "controller-fence.hami.io"
CONTROLLER_PROBE_POLICY: Final = "controller-probe.hami.io"
CONTROLLER_POLICIES: Final = (
    CONTROLLER_PODS_POLICY,
    CONTROLLER_MARKS_POLICY,
    CONTROLLER_TEMPLATES_POLICY,
    CONTROLLER_FENCE_POLICY,
    CONTROLLER_PROBE_POLICY,
)
"""Names of the policies that restrict the controller's token to what the controller writes."""
GUARD_POLICIES: Final = (CLAIM_POLICY, SLICE_POLICY, TOKEN_POLICY, EVENT_POLICY, TRUST_POLICY, *CONTROLLER_POLICIES)
"""Policies that forbid something, in either mode; a ValidatingAdmissionPolicy and a binding each."""

# --- per-card metrics of node drivers (names of HAMi and HAMi-WebUI; docs/monitoring.md) ----------
METRIC_MEMORY_USED: Final = "hami_host_gpu_memory_used_bytes"
METRIC_MEMORY_TOTAL: Final = "hami_host_gpu_memory_total_bytes"
METRIC_UTILIZATION: Final = "hami_host_gpu_utilization_ratio"
METRIC_TEMPERATURE: Final = "hami_device_temperature"
METRIC_POWER: Final = "hami_device_power"
METRIC_CONTAINER_MEMORY: Final = "hami_dra_container_memory_used_bytes"
METRIC_CONTAINER_LIMIT: Final = "hami_vgpu_memory_limit_bytes"
METRIC_CONTAINER_UTILIZATION: Final = "hami_dra_container_utilization_ratio"
SIMULATED: Final = "simulated"
"""Value of their label `source` if the values are not measured."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
DRIVER_COMPONENT: Final = "driver"
"""Component label of the node drivers' pods."""
HTTP_PORT: Final = "http"
"""Name of the port on which our pods serve /metrics."""

# --- policies -------------------------------------------------------------------------------------
BINPACK: Final = "binpack"
SPREAD: Final = "spread"
TOPOLOGY_AWARE: Final = "topology-aware"
MUTEX: Final = "mutex"
NUMA: Final = "numa"
FIRST_FIT: Final = "first-fit"
"""Test policy: upstream's own order, vendor rules off."""
FAIR_SHARE: Final = "fair-share"
HAMI_NODE_POLICIES: Final = (BINPACK, SPREAD)
NODE_POLICIES: Final = (*HAMI_NODE_POLICIES, FAIR_SHARE)
"""Those that HAMi lacks have a ranking of their own (`controller.scoring.ranking`), which orders the cards
of a node, too; to vendors they are a `binpack`. Help, completion, dashboard and chart list what is here.
"""
RENAMED_NODE_POLICIES: Final = MappingProxyType({"fgd": FAIR_SHARE})
"""Deprecated value → the policy that it stands for; with a notice, until the second minor version after 0.2.0."""
DEVICE_POLICIES: Final = (SPREAD, BINPACK, TOPOLOGY_AWARE, MUTEX, NUMA)

# --- attributes and capacities --------------------------------------------------------------------
ATTR_VENDOR: Final = "hami.io/vendor"
ATTR_UUID: Final = "hami.io/uuid"
ATTR_PRODUCT: Final = "hami.io/productName"
ATTR_INDEX: Final = "hami.io/index"
ATTR_LINK_GROUP: Final = "hami.io/linkGroup"
ATTR_LINKS: Final = "hami.io/links"
ATTR_DISTANCE: Final = "hami.io/distance"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
ATTR_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTR_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTR_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
CAP_MEMORY: Final = "memory"
CAP_CORES: Final = "cores"
CAP_SHARES: Final = "shares"
