"""The text of each reason code in both languages. An unknown code is shown as it is.

Used by templates through `reason(code)`, which returns the English text: the key of the message
catalogue, of which these texts are a part. The codes and their meaning: `hami_dra.api.names`,
docs/troubleshooting.md.
"""

from typing import Final, NamedTuple

from hami_dra.api import names


class Text(NamedTuple):
    english: str
    chinese: str


REASONS: Final = {
    names.CARD_TYPE_MISMATCH: Text("not the requested type of device", "不是所要求的设备型号"),
    names.CARD_UUID_MISMATCH: Text("not a device requested by its UUID", "不是按 UUID 要求的设备"),
    names.CARD_TIME_SLICING_EXHAUSTED: Text("all slots of the device are taken", "设备的份数已用完"),
    names.CARD_COMPUTE_UNITS_EXHAUSTED: Text("all cores of the device are taken", "设备的算力已用完"),
    names.CARD_INSUFFICIENT_MEMORY: Text("not enough memory left on the device", "设备的剩余显存不足"),
    names.CARD_INSUFFICIENT_CORE: Text("not enough cores left on the device", "设备的剩余算力不足"),
    names.CARD_NOT_HEALTH: Text("the device is not healthy", "设备不健康"),
    names.CARD_CORDONED: Text("the device is out of service", "设备已停用"),
    names.NUMA_NOT_FIT: Text("not enough devices on one NUMA node", "同一 NUMA 节点上的设备不足"),
    names.EXCLUSIVE_CONFLICT: Text("needs a device of its own, and this one is in use", "要求独占，但设备上已有占用者"),
    names.CUSTOM_FILTER_RULE: Text(
        "the device does not have a capacity that the request names", "设备没有请求所指名的容量"
    ),
    names.NODE_INSUFFICIENT_DEVICE: Text("the node has too few devices", "节点没有这么多设备"),
    names.ALLOCATED_CARDS_INSUFFICIENT: Text("not enough devices fit together", "能一起使用的设备不足"),
    names.NODE_UNFIT_POD: Text("the pod does not fit the node", "Pod 与节点不符"),
    names.RESOURCE_QUOTA_NOT_FIT: Text("the quota of the namespace leaves no room", "命名空间的配额不足"),
    names.TOPOLOGY_NOT_FIT: Text("the remaining devices are not linked as requested", "剩余的设备不满足互联要求"),
    names.MODE_NOT_FIT: Text("the device is in another mode", "设备处于其他模式"),
    names.CARD_MIG_INFEASIBLE: Text(
        "no part of this size can be cut from the device any more", "该设备上已切不出这种规格"
    ),
    names.CARD_APP_CLASS_MISMATCH: Text("the device runs tasks of another class", "设备上运行着其他类别的任务"),
    names.CARD_QOS_MISMATCH: Text("the device serves another QoS", "设备已用于其他 QoS"),
    names.NODE_UNSCHEDULABLE: Text("the node is cordoned", "节点已封锁"),
    names.NODE_NOT_READY: Text("the node is not ready", "节点未就绪"),
    names.NODE_TAINTED: Text("the node has a taint that the pod does not tolerate", "节点有 Pod 不能容忍的污点"),
    names.NODE_AFFINITY: Text("excluded by the pod's node selector or affinity", "Pod 的选择器或亲和性排除了该节点"),
    names.NODE_RESOURCES: Text(
        "not enough CPU, memory or room for pods on the node", "节点的 CPU、内存或 Pod 名额不足"
    ),
    names.NODE_PORTS: Text("a host port of the pod is taken on the node", "Pod 的主机端口在该节点上已被占用"),
    names.NODE_VOLUME_RESTRICTIONS: Text(
        "a volume of the pod is in use, and may not be used twice", "Pod 的卷正在使用中，且不能重复使用"
    ),
    names.NODE_VOLUME_LIMITS: Text("the node can attach no more volumes", "该节点无法再挂载更多卷"),
    names.NODE_VOLUME_BINDING: Text("a volume of the pod is not available on the node", "Pod 的卷在该节点上不可用"),
    names.NODE_VOLUME_ZONE: Text("a volume of the pod lives in another zone", "Pod 的卷位于另一可用区"),
    names.NODE_TOPOLOGY_SPREAD: Text(
        "excluded by the pod's topology spread constraints", "Pod 的拓扑分布约束排除了该节点"
    ),
    names.NODE_POD_AFFINITY: Text("no pod that the pod must be near runs there", "那里没有运行 Pod 亲和性所要求的 Pod"),
    names.NODE_POD_ANTI_AFFINITY: Text("excluded by an anti-affinity between pods", "被 Pod 间的反亲和性排除"),
    names.NODE_DECLARED_FEATURES: Text(
        "the node does not declare a feature that the pod needs", "该节点未声明 Pod 所需的特性"
    ),
    names.NODE_REFUSED: Text("kube-scheduler refused the node a moment ago", "kube-scheduler 刚刚拒绝了该节点"),
    names.NODE_OUTSIDE_DOMAIN: Text(
        "the node is outside the topology domain that the pod's gang was tried in",
        "节点不在该 Pod 所属 gang 所尝试的拓扑域内",
    ),
    names.NODE_CLAIM_ELSEWHERE: Text(
        "another claim of the pod is allocated elsewhere", "Pod 的另一个 Claim 分配在别处"
    ),
    names.NODE_DEVICE_PLUGIN: Text(
        "a device plugin on the node offers the same devices", "节点上的 device plugin 提供同样的设备"
    ),
    names.NODE_HANDLES_EXHAUSTED: Text("the node has no handles left", "节点的句柄已用完"),
}


def reason(code: str) -> str:
    return REASONS[code].english if code in REASONS else code
