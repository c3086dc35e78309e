"""The nodes that kube-scheduler's filter plugins let a pod run on, devices apart: nodes and the
pods on them as columns, one module per plugin. Updated by difference. Pure.
"""

from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.nodes import NOT_READY_TAINT, UNREACHABLE_TAINT, UNSCHEDULABLE_TAINT, effective_taints
from controller.cluster.pods.resized_requests import resize_state
from controller.rules.node_affinity import admits, pinned_names
from controller.rules.pod_topology_spread import is_hard
from controller.rules.taint_toleration import taint_code
