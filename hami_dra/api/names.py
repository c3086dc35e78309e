"""Every name users and other programs see: drivers, annotations, labels, taints, policies, reason codes.

Sources: HAMi's annotations and reason codes (pkg/device/common), Kubernetes' well-known names.
"""

from typing import Final

DOMAIN: Final = "hami.io"

# --- annotations and labels on pods, claims, templates and classes -------------------------------------------------
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
DEVICE_POLICY: Final = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"
DRA_LABEL: Final = "hami.io/dra"
"""Label `"true"`: this pod's claims are hami-dra's, so it may be gated."""
WEBHOOK_LABEL: Final = "hami.io/webhook"
"""Label `ignore` on a pod or namespace: the webhook leaves it alone (HAMi's opt-out)."""
CONVERTED_REQUEST: Final = "hami.io/converted-request"
"""Annotation on a converted pod: its normalised request as JSON, from which a missing template is made again."""
TEMPLATE_HASH_LABEL: Final = "hami.io/request-hash"

# --- what the controller leaves behind in the cluster --------------------------------------------------------------
GATE: Final = "hami.io/allocation"
FENCE_TAINT: Final = "hami.io/controller-allocates"
CORDON_TAINT: Final = "hami.io/cordoned"
"""Key of the taint on a card that an operator took out of service."""
UNHEALTHY_TAINT: Final = "hami.io/unhealthy"
"""Key of the taint on a card with a fault; the value says which (`xid-79`)."""
ALLOCATED_BY: Final = "hami.io/allocated-by"
FLEET_LABEL: Final = "hami.io/fleet"
"""On the nodes and slices of a simulated fleet: its name."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "hami-dra"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
"""Its value is `MANAGED_BY` too; Helm claims the managed-by label for itself."""
PROBE_LABEL: Final = "hami.io/probe"
"""On the objects that test the fence; no other pod or claim carries it."""
FENCE_PROVEN: Final = "hami.io/fence-proven"
"""Annotation on a fence rule: `uid/generation` of the rule that a probe claim was seen to respect."""
LEAVING_UNTIL: Final = "hami.io/leaving-until"
"""Annotation on the controller's lease: `hami-dra uninstall` is at work; no controller acts before this moment."""
DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"

# --- what an installation consists of (manifests/) -----------------------------------------------------------------------
SYSTEM_NAMESPACE: Final = "hami-dra-system"
CONTROLLER: Final = "hami-dra-controller"
"""Name of its ServiceAccount, roles and lease."""
WEBHOOK: Final = "hami-dra-webhook"
"""Name of its ServiceAccount, roles, Service and MutatingWebhookConfiguration."""
DRIVER: Final = "hami-dra-driver"
UNINSTALL: Final = "hami-dra-uninstall"
WEBHOOK_SECRET: Final = "hami-dra-webhook-tls"  # noqa: S105 (the name of a Secret)
GATE_POLICY: Final = "gate.hami.io"
"""Name of the MutatingAdmissionPolicy and of its binding."""
FENCE_POLICY: Final = "fence.hami.io"
"""Name of the ValidatingAdmissionPolicy and of its binding."""

# --- policies --------------------------------------------------------------------------------------------------------
BINPACK: Final = "binpack"
SPREAD: Final = "spread"
TOPOLOGY_AWARE: Final = "topology-aware"
MUTEX: Final = "mutex"
NUMA: Final = "numa"
FIRST_FIT: Final = "first-fit"
"""Test policy: upstream's own order, vendor rules off."""
NODE_POLICIES: Final = (BINPACK, SPREAD)
DEVICE_POLICIES: Final = (SPREAD, BINPACK, TOPOLOGY_AWARE, MUTEX, NUMA)

# --- attributes and capacities ---------------------------------------------------------------------------------------
ATTR_VENDOR: Final = "hami.io/vendor"
ATTR_UUID: Final = "hami.io/uuid"
ATTR_PRODUCT: Final = "hami.io/productName"
ATTR_INDEX: Final = "hami.io/index"
ATTR_LINK_GROUP: Final = "hami.io/linkGroup"
ATTR_LINKS: Final = "hami.io/links"
ATTR_DISTANCE: Final = "hami.io/distance"
ATTR_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
ATTR_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTR_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
CAP_MEMORY: Final = "memory"
CAP_CORES: Final = "cores"
CAP_SHARES: Final = "shares"

# --- HAMi's reason codes (pkg/device/common/common.go) ------------------------------------------------------------------
CARD_TYPE_MISMATCH: Final = "CardTypeMismatch"
CARD_UUID_MISMATCH: Final = "CardUuidMismatch"
CARD_TIME_SLICING_EXHAUSTED: Final = "CardTimeSlicingExhausted"
CARD_COMPUTE_UNITS_EXHAUSTED: Final = "CardComputeUnitsExhausted"
CARD_INSUFFICIENT_MEMORY: Final = "CardInsufficientMemory"
CARD_INSUFFICIENT_CORE: Final = "CardInsufficientCore"
CARD_NOT_HEALTH: Final = "CardNotHealth"
CARD_CORDONED: Final = "CardCordoned"
NUMA_NOT_FIT: Final = "NumaNotFit"
EXCLUSIVE_CONFLICT: Final = "ExclusiveDeviceAllocateConflict"
CUSTOM_FILTER_RULE: Final = "CardNotFoundCustomFilterRule"
NODE_INSUFFICIENT_DEVICE: Final = "NodeInsufficientDevice"
ALLOCATED_CARDS_INSUFFICIENT: Final = "AllocatedCardsInsufficientRequest"
NODE_UNFIT_POD: Final = "NodeUnfitPod"
RESOURCE_QUOTA_NOT_FIT: Final = "ResourceQuotaNotFit"
TOPOLOGY_NOT_FIT: Final = "TopologyNotFit"
MODE_NOT_FIT: Final = "ModeNotFit"
# Ours, where HAMi has no word because kube-scheduler filtered the node before HAMi saw it:
NODE_UNSCHEDULABLE: Final = "NodeUnschedulable"
NODE_NOT_READY: Final = "NodeNotReady"
NODE_TAINTED: Final = "NodeTaintNotTolerated"
NODE_AFFINITY: Final = "NodeAffinityNotMatch"
NODE_RESOURCES: Final = "NodeInsufficientResources"
NODE_TOPOLOGY_SPREAD: Final = "NodeTopologySpreadNotMatch"
NODE_REFUSED: Final = "NodeRefusedByScheduler"
NODE_CLAIM_ELSEWHERE: Final = "NodeNotWhereClaimIsAllocated"
NODE_DEVICE_PLUGIN: Final = "NodeOffersDevicePlugin"
