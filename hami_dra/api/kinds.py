"""The kinds that this project uses, with their API paths and the Structs that read them."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from hami_dra.api import core, podgroups, policy, resource, storage, workloads
from hami_dra.api.meta import Object
from hami_dra.api.opaque import settle_claim, settle_class, settle_template
from hami_dra.api.oversized import (
    reduce_budget,
    reduce_claim,
    reduce_other,
    reduce_pod,
    reduce_pod_group,
    reduce_quota,
    reduce_template,
    reduce_volume_claim,
)
from hami_dra.api.sharing import (
    share_claim_parts,
    share_csi_node_parts,
    share_node_parts,
    share_parts,
    share_pod_parts,
    share_template_parts,
    share_volume_claim_parts,
    share_volume_parts,
)
from hami_dra.api.weight import LIGHT, MOST_SMALL_WEIGHT, MOST_VOLUME_CLAIM_WEIGHT, MOST_WEIGHT, excess

T = TypeVar("T", bound=Object)


class Kind(Struct, Generic[T], frozen=True):
    """One kind. `type` is the Struct that reads it; `Object` if only metadata matters."""

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool
    type: type[T]
    settle: Callable[[T], str] | None = None
    """Called by `settled`. Returns the unreadable parts, or ""."""
    reduce: Callable[[T, str], None] | None = None
    """Reduces an object that is too large; None: no tenant writes objects of this kind."""
    most_weight: int = MOST_WEIGHT

    def settled(self, item: T, length: int | None = None) -> str:
        """Apply to each object that was read, before any other code sees it: one that is too large
        is reduced, parts of others are shared. Returns the unreadable parts, or "".

        `length`: of the bytes that it was read from, where that is known.
        """
        if (
            self.reduce is not None
            and (length is None or length > LIGHT * self.most_weight)
            and (problem := excess(item, self.most_weight))
        ):
            self.reduce(item, problem)
            return problem
        return self.settle(item) if self.settle is not None else ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """Return the name for logs and metrics: the plural; as kubectl takes it where several kinds have it."""
        return f"{self.plural}.{self.version}.{self.group}" if self.plural == "podgroups" else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection (no name), the object, or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")
        return f"{root}{scope}/{self.plural}{tail}"


def _settle_claim(claim: resource.ResourceClaim) -> str:
    problem = settle_claim(claim)
    share_claim_parts(claim)
    return problem


def _settle_template(template: resource.ResourceClaimTemplate) -> str:
    problem = settle_template(template)
    share_template_parts(template)
    return problem


def _of_metadata(name: str, group: str, plural: str, version: str = "v1", *, namespaced: bool = True) -> Kind[Object]:
    return Kind(name, group, version, plural, namespaced, Object)


def _pod_group(group: str, version: str, read: type[T], reduce: Callable[[T, str], None]) -> Kind[T]:
    return Kind("PodGroup", group, version, "podgroups", True, read, None, reduce, MOST_SMALL_WEIGHT)


POD = Kind("Pod", "", "v1", "pods", True, core.Pod, share_pod_parts, reduce_pod)
NODE = Kind("Node", "", "v1", "nodes", False, core.Node, share_node_parts)
NAMESPACE = Kind("Namespace", "", "v1", "namespaces", False, core.Namespace, None, reduce_other, MOST_SMALL_WEIGHT)
RESOURCE_QUOTA = Kind("ResourceQuota", "", "v1", "resourcequotas", True, core.ResourceQuota, None, reduce_quota)
SECRET = Kind("Secret", "", "v1", "secrets", True, core.Secret)
CONFIG_MAP = Kind("ConfigMap", "", "v1", "configmaps", True, core.ConfigMap)
SERVICE_ACCOUNT = _of_metadata("ServiceAccount", "", "serviceaccounts")
SERVICE = _of_metadata("Service", "", "services")
_SCHEDULING = "scheduling.k8s.io"
PRIORITY_CLASS = Kind("PriorityClass", _SCHEDULING, "v1", "priorityclasses", False, core.PriorityClass)
POD_DISRUPTION_BUDGET = Kind(
    "PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets", True,
    policy.PodDisruptionBudget, None, reduce_budget, MOST_SMALL_WEIGHT,
)  # fmt: skip
LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases", True, core.Lease)
EVENT = _of_metadata("Event", "events.k8s.io", "events")
_DRA = "resource.k8s.io"
RESOURCE_SLICE = Kind("ResourceSlice", _DRA, "v1", "resourceslices", False, resource.ResourceSlice, share_parts)
RESOURCE_CLAIM = Kind(
    "ResourceClaim", _DRA, "v1", "resourceclaims", True, resource.ResourceClaim, _settle_claim, reduce_claim
)
RESOURCE_CLAIM_TEMPLATE = Kind(
    "ResourceClaimTemplate", _DRA, "v1", "resourceclaimtemplates", True,
    resource.ResourceClaimTemplate, _settle_template, reduce_template,
)  # fmt: skip
DEVICE_CLASS = Kind("DeviceClass", _DRA, "v1", "deviceclasses", False, resource.DeviceClass, settle_class)
DEVICE_TAINT_RULE = Kind("DeviceTaintRule", _DRA, "v1", "devicetaintrules", False, resource.DeviceTaintRule)
DEVICE_TAINT_RULE_V1BETA2 = Kind(
    "DeviceTaintRule", _DRA, "v1beta2", "devicetaintrules", False, resource.DeviceTaintRule
)
PERSISTENT_VOLUME = Kind(
    "PersistentVolume", "", "v1", "persistentvolumes", False, storage.PersistentVolume, share_volume_parts
)
PERSISTENT_VOLUME_CLAIM = Kind(
    "PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", True,
    storage.PersistentVolumeClaim, share_volume_claim_parts, reduce_volume_claim, MOST_VOLUME_CLAIM_WEIGHT,
)  # fmt: skip
_STORAGE = "storage.k8s.io"
STORAGE_CLASS = Kind("StorageClass", _STORAGE, "v1", "storageclasses", False, storage.StorageClass)
CSI_NODE = Kind("CSINode", _STORAGE, "v1", "csinodes", False, storage.CSINode, share_csi_node_parts)
CSI_DRIVER = Kind("CSIDriver", _STORAGE, "v1", "csidrivers", False, storage.CSIDriver)
CSI_STORAGE_CAPACITY = Kind(
    "CSIStorageCapacity", _STORAGE, "v1", "csistoragecapacities", True, storage.CSIStorageCapacity
)
VOLUME_ATTACHMENT = Kind("VolumeAttachment", _STORAGE, "v1", "volumeattachments", False, storage.VolumeAttachment)
POD_GROUP = _pod_group(_SCHEDULING, "v1beta1", podgroups.PodGroup, reduce_pod_group)
POD_GROUP_V1ALPHA2 = _pod_group(_SCHEDULING, "v1alpha2", podgroups.PodGroup, reduce_pod_group)
COSCHEDULING_POD_GROUP = _pod_group("scheduling.x-k8s.io", "v1alpha1", podgroups.MinMemberPodGroup, reduce_other)
VOLCANO_POD_GROUP = _pod_group("scheduling.volcano.sh", "v1beta1", podgroups.MinMemberPodGroup, reduce_other)
DEPLOYMENT = Kind("Deployment", "apps", "v1", "deployments", True, workloads.Workload)
REPLICA_SET = Kind("ReplicaSet", "apps", "v1", "replicasets", True, workloads.Workload)
STATEFUL_SET = Kind("StatefulSet", "apps", "v1", "statefulsets", True, workloads.Workload)
DAEMON_SET = Kind("DaemonSet", "apps", "v1", "daemonsets", True, workloads.Workload)
JOB = Kind("Job", "batch", "v1", "jobs", True, workloads.Workload)
CRON_JOB = _of_metadata("CronJob", "batch", "cronjobs")
JOB_SET = _of_metadata("JobSet", "jobset.x-k8s.io", "jobsets", "v1alpha2")
LEADER_WORKER_SET = _of_metadata("LeaderWorkerSet", "leaderworkerset.x-k8s.io", "leaderworkersets")
WORKLOAD = _of_metadata("Workload", _SCHEDULING, "workloads", "v1beta1")
RUNTIME_CLASS = _of_metadata("RuntimeClass", "node.k8s.io", "runtimeclasses", namespaced=False)
_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLE = _of_metadata("ClusterRole", _RBAC, "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = _of_metadata("ClusterRoleBinding", _RBAC, "clusterrolebindings", namespaced=False)
ROLE = _of_metadata("Role", _RBAC, "roles")
ROLE_BINDING = _of_metadata("RoleBinding", _RBAC, "rolebindings")
_ADMISSION = "admissionregistration.k8s.io"
MUTATING_WEBHOOK = _of_metadata(
    "MutatingWebhookConfiguration", _ADMISSION, "mutatingwebhookconfigurations", namespaced=False
)
VALIDATING_WEBHOOK = _of_metadata(
    "ValidatingWebhookConfiguration", _ADMISSION, "validatingwebhookconfigurations", namespaced=False
)
MUTATING_POLICY = _of_metadata("MutatingAdmissionPolicy", _ADMISSION, "mutatingadmissionpolicies", namespaced=False)
MUTATING_POLICY_BINDING = _of_metadata(
    "MutatingAdmissionPolicyBinding", _ADMISSION, "mutatingadmissionpolicybindings", namespaced=False
)
VALIDATING_POLICY = _of_metadata(
    "ValidatingAdmissionPolicy", _ADMISSION, "validatingadmissionpolicies", namespaced=False
)
VALIDATING_POLICY_BINDING = _of_metadata(
    "ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings", namespaced=False
)
STORAGE: tuple[Kind[Any], ...] = (
    STORAGE_CLASS, CSI_DRIVER, CSI_NODE, CSI_STORAGE_CAPACITY, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM,
    VOLUME_ATTACHMENT,
)  # fmt: skip
"""What volumes of pods are judged by; hami-dra works without any of them."""
POD_GROUPS: tuple[Kind[Any], ...] = (POD_GROUP, POD_GROUP_V1ALPHA2, COSCHEDULING_POD_GROUP, VOLCANO_POD_GROUP)
"""Groups that pods are members of; most clusters serve some of them at most."""
WORKLOADS = (DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET, JOB)
POD_SETS = (JOB_SET, LEADER_WORKER_SET)
"""Kinds of other projects whose pods run together."""
ALL: tuple[Kind[Object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Kind))
BY_GVK: dict[tuple[str, str], Kind[Object]] = {(kind.api_version, kind.name): kind for kind in ALL}
