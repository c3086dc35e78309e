"""Which nodes may take a pod, devices apart: cordons, taints, affinity, resources, hard topology spread.

Asked by `decide` through the inventory. What only the node object decides (taints, selectors) is kept per kind of pod and
mended for nodes that changed; resources and spread are column arithmetic. What is not modelled here (volumes, inter-pod
affinity, ...) is learnt when kube-scheduler refuses the node.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from controller.inventory.columns import Bools
from controller.inventory.nodes import NOT_READY_TAINT, UNSCHEDULABLE_TAINT, NodeColumns, effective_taints
from controller.inventory.podresources import pod_requests
from controller.inventory.selectors import node_selector_matches
from controller.inventory.topologyspread import SpreadCounts
from hami_dra.api import names
from hami_dra.api.core import Node, Pod, Taint, Toleration

CODES: Final = (
    "",
    names.NODE_UNSCHEDULABLE,
    names.NODE_NOT_READY,
    names.NODE_TAINTED,
    names.NODE_AFFINITY,
    names.NODE_RESOURCES,
    names.NODE_TOPOLOGY_SPREAD,
)
_NUMBER: Final = {code: number for number, code in enumerate(CODES)}
_ALWAYS_DECLARED: Final = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})
_KEPT: Final = 128
_ABSENT: Final = 255

NodeCodes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Per node row, shape (size,)."""

    mask: Bools
    """The pod fits; rows without a node are False."""
    codes: NodeCodes
    """Number of the first failing reason (`CODES`), 0 where it fits, 255 where there is no node."""


class NodeFits:
    def __init__(self, nodes: NodeColumns, spread: SpreadCounts) -> None:
        self._nodes = nodes
        self._spread = spread
        self._kept: OrderedDict[Hashable, _Static] = OrderedDict()

    def of(self, pod: Pod) -> NodeFit:
        nodes = self._nodes
        codes = self._static(pod).copy()
        short = np.zeros(nodes.size, dtype=np.bool_)
        for resource, wanted in pod_requests(pod).items():
            if wanted > 0:
                offered = nodes.offers(resource)
                lacking = offered - nodes.used(resource) < wanted
                # a kubelet declares these always; a node in a file that does not is not thereby full
                short |= lacking & (offered > 0) if resource in _ALWAYS_DECLARED else lacking
        codes[(codes == 0) & short] = _NUMBER[names.NODE_RESOURCES]
        if any(each.when_unsatisfiable == "DoNotSchedule" for each in pod.spec.topology_spread_constraints):
            uneven = self._spread.violates(pod, self._eligible(pod), self._untainted(pod))
            codes[(codes == 0) & uneven] = _NUMBER[names.NODE_TOPOLOGY_SPREAD]
        return NodeFit(mask=codes == 0, codes=codes)

    def _static(self, pod: Pod) -> NodeCodes:
        spec = pod.spec
        key = (tuple(sorted(spec.node_selector.items())), spec.affinity, spec.tolerations)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Static(pod)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return kept.refreshed(self._nodes)

    def _eligible(self, pod: Pod) -> Bools:
        """Nodes whose labels the pod's selector and affinity admit (nodeAffinityPolicy Honor)."""
        nodes = self._nodes
        return np.fromiter(
            ((node := nodes.nodes[row]) is not None and _admits(pod, node) for row in range(nodes.size)),
            dtype=np.bool_,
            count=nodes.size,
        )

    def _untainted(self, pod: Pod) -> Bools:
        """Nodes whose taints the pod tolerates (nodeTaintsPolicy Honor)."""
        nodes = self._nodes
        return np.fromiter(
            ((node := nodes.nodes[row]) is not None and not _first_taint(pod, node) for row in range(nodes.size)),
            dtype=np.bool_,
            count=nodes.size,
        )


class _Static:
    """Reasons that only the node object and the kind of pod decide."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._version = -1
        self._codes: NodeCodes = np.zeros(0, dtype=np.uint8)

    def refreshed(self, nodes: NodeColumns) -> NodeCodes:
        if self._version != nodes.changes.version:
            changed = None if self._version < 0 else nodes.changes.since(self._version)
            if len(self._codes) < nodes.size:
                fresh = np.full(len(nodes.present), _ABSENT, dtype=np.uint8)
                fresh[: len(self._codes)] = self._codes
                self._codes = fresh
            for row in range(nodes.size) if changed is None else changed:
                node = nodes.nodes[row]
                self._codes[row] = _ABSENT if node is None else _NUMBER[static_code(self._pod, node)]
            self._version = nodes.changes.version
        return self._codes[: nodes.size]


def static_code(pod: Pod, node: Node) -> str:
    """The first reason that the node object gives against the pod, or empty."""
    taint = _first_taint(pod, node)
    if taint == UNSCHEDULABLE_TAINT:
        return names.NODE_UNSCHEDULABLE
    if taint == NOT_READY_TAINT:
        return names.NODE_NOT_READY
    if taint is not None:
        return names.NODE_TAINTED
    return "" if _admits(pod, node) else names.NODE_AFFINITY


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """As corev1.Toleration.ToleratesTaint: empty effect or key stands for all."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in {"", "Equal"}:
        return bool(toleration.key) and toleration.value == taint.value
    return toleration.operator == "Exists"


def _first_taint(pod: Pod, node: Node) -> Taint | None:
    for taint in effective_taints(node):
        if not any(tolerates(toleration, taint) for toleration in pod.spec.tolerations):
            return taint
    return None


def _admits(pod: Pod, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return True
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return required is None or node_selector_matches(required, node.metadata.name, labels)
