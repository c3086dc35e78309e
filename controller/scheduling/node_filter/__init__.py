"""The nodes that kube-scheduler's filter plugins let a pod run on, devices apart: nodes and the
pods on them as columns, one module per plugin. Updated by difference. Pure.
"""

from controller.scheduling.node_filter.codes import PLUGINS
from controller.scheduling.node_filter.node_affinity import admits, pinned_names
from controller.scheduling.node_filter.node_column import NodeColumn
from controller.scheduling.node_filter.nodes import (
    NOT_READY_TAINT,
    UNREACHABLE_TAINT,
    UNSCHEDULABLE_TAINT,
    effective_taints,
)
from controller.scheduling.node_filter.pod_topology_spread import is_hard
from controller.scheduling.node_filter.resized_requests import resize_state
from controller.scheduling.node_filter.taint_toleration import taint_code
from controller.scheduling.node_filter.volumes.volume_plugins import CODES as VOLUME_CODES

__all__ = [
    "NOT_READY_TAINT",
    "PLUGINS",
    "UNREACHABLE_TAINT",
    "UNSCHEDULABLE_TAINT",
    "VOLUME_CODES",
    "NodeColumn",
    "admits",
    "effective_taints",
    "is_hard",
    "pinned_names",
    "resize_state",
    "taint_code",
]
