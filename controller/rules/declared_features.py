"""Features of kubelet that a pod needs and a node declares (kube-scheduler's NodeDeclaredFeatures,
k8s.io/component-helpers/nodedeclaredfeatures). Hardly any pod needs one.
"""

from typing import Final

import numpy as np

from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.reasons import catalogue
from controller.rules.filter_state import FilterState
from controller.rules.plugin import RecomputedFilter
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod

RESTART_ALL_CONTAINERS: Final = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"
_RESTART_ALL: Final = "RestartAllContainers"


def needed_features(pod: Pod) -> tuple[str, ...]:
    """Return the features that a node must declare to run the pod."""
    spec = pod.spec
    found = []
    if any(
        rule.action == _RESTART_ALL
        for each in (*spec.containers, *spec.init_containers)
        for rule in each.restart_policy_rules
    ):
        found.append(RESTART_ALL_CONTAINERS)
    if spec.host_network and spec.host_users is False:
        found.append(USER_NAMESPACES_HOST_NETWORK)
    return tuple(found)


class NodeDeclaredFeatures:
    code = catalogue.NODE_DECLARED_FEATURES

    def __init__(self, state: FilterState) -> None:
        self._state = state

    def filter_for(self, pod: Pod, own: Placed | None) -> "FeatureFilter | None":  # noqa: ARG002 (of the protocol)
        needed = needed_features(pod)
        if not needed:
            return None
        return self._state.shapes.of(pod, self.code, needed, lambda: FeatureFilter(self._state.nodes, needed))


class FeatureFilter(RecomputedFilter):
    def __init__(self, nodes: NodeColumns, needed: tuple[str, ...]) -> None:
        super().__init__(NodeDeclaredFeatures.code)
        self._nodes = nodes
        self._needed = frozenset(needed)
        self._declares = NodeColumn(nodes, lambda node: self._needed.issubset(node.status.declared_features), 0)

    def sentence(self, pod: Pod, row: int) -> str:  # noqa: ARG002 (of the protocol)
        missing = sorted(self._needed - {*self._nodes.node(row).status.declared_features})
        return f"NodeDeclaredFeatures: the node does not declare {', '.join(missing)}"

    def _versions(self) -> object:
        return self._nodes.changes.version

    def _compute(self) -> Bools:
        return np.logical_not(self._declares.current().astype(np.bool_))
