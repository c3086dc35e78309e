"""All reason codes: for each its words in both languages, and what may help. Pure.

A code says by which check a device or a node is refused first. To add one of a node, write it here
and use it in its rule: numbers, queueing hints, explanations and the dashboard follow.

| codes | their order |
|---|---|
| of devices, HAMi's | `hami_dra.vendors.device_codes`, which has their words, too |
| of nodes, with a plugin | that of kube-scheduler's filter plugins, as listed here (`NUMBERS`) |
| of nodes, without one | `decide.node_filter` checks these after the plugins |
"""

from enum import Flag, auto
from typing import Final

from msgspec.structs import asdict, replace

from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import IN_STATE, CodeWords


class Change(Flag):
    """Kinds of changes that may make room."""

    NOTHING = 0
    DEVICES_FREED = auto()
    DEVICES_PUBLISHED = auto()
    """Slices, or the taints of rules on devices."""
    NODE_ADDED = auto()
    NODE_GONE = auto()
    NODE_ALLOCATABLE = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    """Taints, cordon, readiness."""
    RESOURCES_FREED = auto()
    """A node has more left: a pod was deleted, resized, or counts elsewhere."""
    PODS_MOVED = auto()
    """Pods of a namespace were placed, left a node, or changed their labels: topology spread is counted again."""
    PODS_JOINED = auto()
    """Pods of any namespace began to count on a node, or changed their labels: affinity is counted again."""
    PODS_LEFT = auto()
    """Pods of any namespace left a node, or changed their labels: so for anti-affinity."""
    NODE_FEATURES = auto()
    QUOTA = auto()
    REFUSAL_ENDED = auto()
    """kube-scheduler's refusal of a node no longer counts, for some pod."""
    CLASS = auto()
    """Classes, and labels of namespaces."""
    VOLUMES = auto()
    """PersistentVolumes and their claims, StorageClasses, CSI objects."""


ANY: Final = ~Change.NOTHING
RELEASED: Final = Change.DEVICES_FREED | Change.RESOURCES_FREED
ALWAYS: Final = Change.NODE_ADDED | Change.CLASS
"""A new node helps against everything, because it may fit."""
FOREIGN: Final = Change.DEVICES_PUBLISHED | ALWAYS
"""For a pod whose devices are all of unmanaged drivers."""


_DEVICES: Final = Change.DEVICES_FREED | Change.DEVICES_PUBLISHED | Change.NODE_LABELS
"""Labels of a node decide which slices it reaches."""
_VOLUMES: Final = Change.VOLUMES | Change.RESOURCES_FREED | Change.NODE_LABELS


class ReasonCode(CodeWords, frozen=True):
    """What is known of a reason code."""

    helps: Change = _DEVICES
    """The changes that may make a pod schedulable that was refused for this reason."""
    plugin: str = ""
    """The plugin of kube-scheduler that refuses a node for this reason; `Spares` is hami-dra's own."""


CATALOGUE: Final = {code: ReasonCode(**asdict(words)) for code, words in device_codes.WORDS.items()}
"""By code."""
_QUOTA: Final = device_codes.RESOURCE_QUOTA_NOT_FIT
CATALOGUE[_QUOTA] = replace(CATALOGUE[_QUOTA], helps=_DEVICES | Change.QUOTA)


def _of_node(
    code: str, words: str, chinese: str, helps: Change, plugin: str = "", *, fix: str = "", state: str = ""
) -> str:
    """Add a code, and return it."""
    CATALOGUE[code] = ReasonCode(words, chinese, fix, state, of_node=True, helps=helps, plugin=plugin)
    return code


# --- nodes, in the order in which kube-scheduler runs its filter plugins ----------------------
# getDefaultPlugins in pkg/scheduler/apis/config/v1/default_plugins.go

NODE_UNSCHEDULABLE: Final = _of_node(
    "NodeUnschedulable",
    IN_STATE,
    "节点已封锁",
    Change.NODE_TAINTS,
    "NodeUnschedulable",
    state="cordoned",
    fix="uncordon {one} (kubectl uncordon {})",
)
NODE_NOT_READY: Final = _of_node(
    "NodeNotReady",
    IN_STATE,
    "节点未就绪",
    Change.NODE_TAINTS,
    "TaintToleration",
    state="not ready",
    fix="see kubectl describe node {}",
)
NODE_TAINTED: Final = _of_node(
    "NodeTaintNotTolerated",
    "the node has a taint that the pod does not tolerate",
    "节点有 Pod 不能容忍的污点",
    Change.NODE_TAINTS,
    "TaintToleration",
)
NODE_AFFINITY: Final = _of_node(
    "NodeAffinityNotMatch",
    "excluded by the pod's node selector, affinity or node name",
    "Pod 的选择器、亲和性或节点名排除了该节点",
    Change.NODE_LABELS,
    "NodeAffinity",
)
NODE_PORTS: Final = _of_node(
    "NodePortsTaken",
    "a host port of the pod is taken on {}",
    "Pod 的主机端口在该节点上已被占用",
    Change.RESOURCES_FREED,
    "NodePorts",
)
NODE_RESOURCES: Final = _of_node(
    "NodeInsufficientResources",
    "not enough CPU, memory or room for pods on {}",
    "节点的 CPU、内存或 Pod 名额不足",
    Change.RESOURCES_FREED | Change.NODE_ALLOCATABLE,
    "NodeResourcesFit",
)
NODE_VOLUME_RESTRICTIONS: Final = _of_node(
    "NodeVolumeInUse",
    "a volume of the pod is in use, and may not be used twice",
    "Pod 的卷正在使用中，且不能重复使用",
    _VOLUMES,
    "VolumeRestrictions",
)
NODE_VOLUME_LIMITS: Final = _of_node(
    "NodeVolumeLimitExceeded", "{} can attach no more volumes", "该节点无法再挂载更多卷", _VOLUMES, "NodeVolumeLimits"
)
NODE_VOLUME_BINDING: Final = _of_node(
    "NodeVolumeNotAvailable",
    "a volume of the pod is not available on {}",
    "Pod 的卷在该节点上不可用",
    _VOLUMES,
    "VolumeBinding",
)
NODE_VOLUME_ZONE: Final = _of_node(
    "NodeVolumeZoneNotMatch",
    "a volume of the pod lives in another zone",
    "Pod 的卷位于另一可用区",
    _VOLUMES,
    "VolumeZone",
)
NODE_TOPOLOGY_SPREAD: Final = _of_node(
    "NodeTopologySpreadNotMatch",
    "excluded by the pod's topology spread constraints",
    "Pod 的拓扑分布约束排除了该节点",
    Change.PODS_MOVED | Change.NODE_GONE | Change.NODE_LABELS | Change.NODE_TAINTS,
    "PodTopologySpread",
)
NODE_POD_AFFINITY: Final = _of_node(
    "NodePodAffinityNotMatch",
    "no pod that the pod must be near runs there",
    "那里没有运行 Pod 亲和性所要求的 Pod",
    Change.PODS_JOINED | Change.NODE_LABELS,
    "InterPodAffinity",
    fix="It fits once such a pod runs there; else change the affinity",
)
NODE_POD_ANTI_AFFINITY: Final = _of_node(
    "NodePodAntiAffinityConflict",
    "excluded by an anti-affinity between pods",
    "被 Pod 间的反亲和性排除",
    Change.PODS_LEFT | Change.NODE_GONE | Change.NODE_LABELS,
    "InterPodAffinity",
)
NODE_DECLARED_FEATURES: Final = _of_node(
    "NodeLacksFeature",
    "the node does not declare a feature that the pod needs",
    "该节点未声明 Pod 所需的特性",
    Change.NODE_FEATURES,
    "NodeDeclaredFeatures",
)
NODE_SPARE: Final = _of_node(
    "NodeIsSpare",
    "held back as a spare: only preemptible pods, and the repair of gangs, get its devices",
    "备用节点：仅供可抢占的 Pod 和 gang 修复使用",
    Change.NODE_LABELS,
    "Spares",
    fix='State hami.io/preemptible: "true" on the pod, or remove the node\'s label hami.io/spare',
)

# --- nodes, by checks of our own ---------------------------------------------------------------

NODE_REFUSED: Final = _of_node(
    "NodeRefusedByScheduler", "{} {are} not tried for a while", "暂时不再尝试该节点", Change.REFUSAL_ENDED
)
NODE_OUTSIDE_DOMAIN: Final = _of_node(
    "NodeOutsideDomain",
    "{} {are} outside the topology domain that the pod's gang was tried in",
    "节点不在该 Pod 所属 gang 所尝试的拓扑域内",
    ANY,  # whatever makes room in another domain
)
NODE_CLAIM_ELSEWHERE: Final = _of_node(
    "NodeNotWhereClaimIsAllocated",
    "another claim of the pod is allocated elsewhere",
    "Pod 的另一个 Claim 分配在别处",
    Change.NODE_LABELS,
)
NODE_DEVICE_PLUGIN: Final = _of_node(
    "NodeOffersDevicePlugin",
    "a device plugin hands out the same devices there",
    "节点上的 device plugin 提供同样的设备",
    Change.NODE_ALLOCATABLE,
)

PLUGINS: Final = {code: each.plugin for code, each in CATALOGUE.items() if each.plugin}
"""Reason code → kube-scheduler's plugin, in its order."""
CODES: Final = ("", *PLUGINS)
"""By number of the code; 0: the pod fits."""
NUMBERS: Final = {code: number for number, code in enumerate(CODES)}
ABSENT: Final = 255
"""The number of rows without a node."""


def meaning_of(code: str) -> ReasonCode:
    """Return what is known of a code; an unknown one is its own words."""
    return CATALOGUE.get(code) or ReasonCode(code, code)


def english(code: str) -> str:
    return meaning_of(code).english
