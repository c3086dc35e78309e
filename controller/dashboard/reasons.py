"""Texts for reason codes, as keys of the catalogue. An unknown code is shown as it is.

Used by templates through `reason(code)`. The codes and their meaning: `hami_dra.api.names`,
docs/troubleshooting.md.
"""

from typing import Final

from hami_dra.api import names

REASONS: Final = {
    names.CARD_TYPE_MISMATCH: "not the requested type of device",
    names.CARD_UUID_MISMATCH: "not a device requested by its UUID",
    names.CARD_TIME_SLICING_EXHAUSTED: "all slots of the device are taken",
    names.CARD_COMPUTE_UNITS_EXHAUSTED: "all cores of the device are taken",
    names.CARD_INSUFFICIENT_MEMORY: "not enough memory left on the device",
    names.CARD_INSUFFICIENT_CORE: "not enough cores left on the device",
    names.CARD_NOT_HEALTH: "the device is not healthy",
    names.CARD_CORDONED: "the device is out of service",
    names.NUMA_NOT_FIT: "not enough devices on one NUMA node",
    names.EXCLUSIVE_CONFLICT: "needs a device of its own, and this one is in use",
    names.CUSTOM_FILTER_RULE: "the device does not have a capacity that the request names",
    names.NODE_INSUFFICIENT_DEVICE: "the node has too few devices",
    names.ALLOCATED_CARDS_INSUFFICIENT: "not enough devices fit together",
    names.NODE_UNFIT_POD: "the pod does not fit the node",
    names.RESOURCE_QUOTA_NOT_FIT: "the quota of the namespace leaves no room",
    names.TOPOLOGY_NOT_FIT: "the remaining devices are not linked as requested",
    names.MODE_NOT_FIT: "the device is in another mode",
    names.CARD_MIG_INFEASIBLE: "no part of this size can be cut from the device any more",
    names.CARD_APP_CLASS_MISMATCH: "the device runs tasks of another class",
    names.CARD_QOS_MISMATCH: "the device serves another QoS",
    names.NODE_UNSCHEDULABLE: "the node is cordoned",
    names.NODE_NOT_READY: "the node is not ready",
    names.NODE_TAINTED: "the node has a taint that the pod does not tolerate",
    names.NODE_AFFINITY: "excluded by the pod's node selector or affinity",
    names.NODE_RESOURCES: "not enough CPU, memory or room for pods on the node",
    names.NODE_PORTS: "a host port of the pod is taken on the node",
    names.NODE_VOLUME_RESTRICTIONS: "a volume of the pod is in use, and may not be used twice",
    names.NODE_VOLUME_LIMITS: "the node can attach no more volumes",
    names.NODE_VOLUME_BINDING: "a volume of the pod is not available on the node",
    names.NODE_VOLUME_ZONE: "a volume of the pod lives in another zone",
    names.NODE_TOPOLOGY_SPREAD: "excluded by the pod's topology spread constraints",
    names.NODE_POD_AFFINITY: "no pod that the pod must be near runs there",
    names.NODE_POD_ANTI_AFFINITY: "excluded by an anti-affinity between pods",
    names.NODE_DECLARED_FEATURES: "the node does not declare a feature that the pod needs",
    names.NODE_REFUSED: "kube-scheduler refused the node a moment ago",
    names.NODE_OUTSIDE_DOMAIN: "the node is outside the topology domain that the pod's gang was tried in",
    names.NODE_CLAIM_ELSEWHERE: "another claim of the pod is allocated elsewhere",
    names.NODE_DEVICE_PLUGIN: "a device plugin on the node offers the same devices",
    names.NODE_HANDLES_EXHAUSTED: "the node has no handles left",
}


def reason(code: str) -> str:
    return REASONS.get(code, code)
