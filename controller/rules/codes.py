"""Reason codes of nodes in the order of kube-scheduler's filter plugins, and the plugin behind each."""

from typing import Final

from hami_dra.api import names

PLUGINS: Final = {
    names.NODE_UNSCHEDULABLE: "NodeUnschedulable",
    names.NODE_NOT_READY: "TaintToleration",
    names.NODE_TAINTED: "TaintToleration",
    names.NODE_AFFINITY: "NodeAffinity",
    names.NODE_PORTS: "NodePorts",
    names.NODE_RESOURCES: "NodeResourcesFit",
    names.NODE_VOLUME_RESTRICTIONS: "VolumeRestrictions",
    names.NODE_VOLUME_LIMITS: "NodeVolumeLimits",
    names.NODE_VOLUME_BINDING: "VolumeBinding",
    names.NODE_VOLUME_ZONE: "VolumeZone",
    names.NODE_TOPOLOGY_SPREAD: "PodTopologySpread",
    names.NODE_POD_AFFINITY: "InterPodAffinity",
    names.NODE_POD_ANTI_AFFINITY: "InterPodAffinity",
    names.NODE_DECLARED_FEATURES: "NodeDeclaredFeatures",
}
"""Reason code → kube-scheduler's plugin, in the order in which kube-scheduler runs them
(getDefaultPlugins in pkg/scheduler/apis/config/v1/default_plugins.go).
"""
CODES: Final = ("", *PLUGINS)
"""By number of the code; 0: the pod fits."""
NUMBERS: Final = {code: number for number, code in enumerate(CODES)}
ABSENT: Final = 255
"""The number of rows without a node."""
