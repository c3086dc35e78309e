"""What a node says by itself to pods, by its taints and by the labels that they select: columns, and
the plugins that read them.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.pods.pod_shapes import PodShapes
from controller.reasons import catalogue
from controller.rules.node_affinity import admits, affinity_sentence, pinned_names, required_affinity
from controller.rules.plugin import Asked, NodePlugin
from controller.rules.taint_states import TaintStates, TaintVerdicts
from controller.rules.taint_toleration import Tolerations, taint_number, taint_sentence, tolerates_own_taints
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.api.core import NodeSelector, Pod

_FEW: Final = 16
"""Names of nodes, up to which each is tested by itself."""
_Selected = tuple[tuple[tuple[str, str], ...], NodeSelector | None]
"""Node selector, by name, and required affinity."""


class NodeRules:
    """Columns of shape (nodes.size,), kept per tolerations or affinity. Callers must not change them."""

    def __init__(self, nodes: NodeColumns, labels: NodeLabels, shapes: PodShapes) -> None:
        self._nodes = nodes
        self._labels = labels
        self._shapes = shapes
        self.taints = TaintStates(nodes)

    def taint_codes(self, pod: Pod) -> Ints:
        """Return the number of the first reason among cordon, readiness and taints, 0 if none."""
        tolerations = pod.spec.tolerations
        column = self._shapes.of(
            pod,
            "taints",
            tolerations,
            lambda: TaintVerdicts(self.taints, lambda node: taint_number(tolerations, node), catalogue.ABSENT),
        )
        return column.current()

    def untainted(self, pod: Pod) -> Bools:
        """Return the nodes whose own taints the pod tolerates (nodeTaintsPolicy Honor)."""
        tolerations = pod.spec.tolerations
        column = self._shapes.of(
            pod,
            "own taints",
            tolerations,
            lambda: TaintVerdicts(self.taints, lambda node: tolerates_own_taints(tolerations, node)),
        )
        return column.current().astype(np.bool_)

    def admitted(self, pod: Pod) -> Bools:
        """Return the nodes that selector and required affinity of the pod admit."""
        spec = pod.spec
        required = required_affinity(pod)
        if required is not None and (pinned := pinned_names(required)) is not None and len(pinned) <= _FEW:
            return self._admitted_of(pod, pinned)
        column = self._shapes.of(
            pod,
            "admits",
            (tuple(sorted(spec.node_selector.items())), required),
            lambda: NodeColumn(
                self._nodes, lambda node: admits(pod, node), 0, judge_all=lambda: self._admitted_by_labels(pod)
            ),
        )
        return column.current().astype(np.bool_)

    def _admitted_by_labels(self, pod: Pod) -> Bools:
        """Return the admitted nodes by columns of their labels: however many requirements and
        values there are, no node is read.
        """
        mask = self._labels.with_labels(pod.spec.node_selector)
        if (required := required_affinity(pod)) is not None:
            terms = [self._labels.of_term(each) for each in required.node_selector_terms]
            mask &= np.logical_or.reduce(terms) if terms else np.False_
        return mask

    def _admitted_of(self, pod: Pod, pinned: frozenset[str]) -> Bools:
        """Return the admitted nodes by name: each pod of a DaemonSet has its own affinity, so only
        named nodes are tested.
        """
        mask = np.zeros(self._nodes.size, dtype=np.bool_)
        for name in pinned:
            row = self._nodes.index_of(name)
            if row >= 0:
                mask[row] = admits(pod, self._nodes.node(row))
        return mask


class _ByRules(NodePlugin[Asked]):
    def __init__(self, nodes: NodeColumns, rules: NodeRules) -> None:
        super().__init__(nodes)
        self._rules = rules


class Spares(NodePlugin[bool]):
    """Nodes that are held back, which kube-scheduler does not know. Not for requests that use spares."""

    reasons = (catalogue.NODE_SPARE,)

    def __init__(self, nodes: NodeColumns) -> None:
        super().__init__(nodes)
        self._codes = NodeColumn(
            nodes,
            lambda node: catalogue.NUMBERS[catalogue.NODE_SPARE] * (node.metadata.labels.get(names.SPARE) == "true"),
            0,
        )

    def asked(self, pod: Pod) -> bool | None:  # noqa: ARG002 (of the contract)
        return True if names.SPARE in self._nodes.label_keys else None

    def codes(self, pod: Pod, asked: bool, rows: Positions, own: Placed | None) -> Ints:  # noqa: ARG002 (of the contract)
        return self._codes.current()[rows]

    def judge(self, pod: Pod, asked: bool) -> Callable[[int], int]:  # noqa: ARG002 (of the contract)
        return self._codes.current().item

    def sentence(self, pod: Pod, row: int, own: Placed | None) -> str:  # noqa: ARG002 (of the contract)
        return f"Spares: {catalogue.english(catalogue.NODE_SPARE)}"


class TaintToleration(_ByRules[Tolerations]):
    """With kube-scheduler's NodeUnschedulable, as a cordon is a taint, too."""

    reasons = catalogue.NODE_UNSCHEDULABLE, catalogue.NODE_NOT_READY, catalogue.NODE_TAINTED

    def asked(self, pod: Pod) -> Tolerations:
        return pod.spec.tolerations

    def codes(self, pod: Pod, asked: Tolerations, rows: Positions, own: Placed | None) -> Ints:  # noqa: ARG002 (of the contract)
        return self._rules.taint_codes(pod)[rows]

    def judge(self, pod: Pod, asked: Tolerations) -> Callable[[int], int]:  # noqa: ARG002 (of the contract)
        return self._rules.taint_codes(pod).item

    def sentence(self, pod: Pod, row: int, own: Placed | None) -> str:  # noqa: ARG002 (of the contract)
        return taint_sentence(pod.spec.tolerations, self._nodes.node(row))


class NodeAffinity(_ByRules[_Selected]):
    reasons = (catalogue.NODE_AFFINITY,)

    def asked(self, pod: Pod) -> _Selected | None:
        selector, required = pod.spec.node_selector, required_affinity(pod)
        return (tuple(sorted(selector.items())), required) if selector or required is not None else None

    def codes(self, pod: Pod, asked: _Selected, rows: Positions, own: Placed | None) -> Codes:  # noqa: ARG002 (of the contract)
        return np.where(self._rules.admitted(pod)[rows], 0, catalogue.NUMBERS[catalogue.NODE_AFFINITY])

    def sentence(self, pod: Pod, row: int, own: Placed | None) -> str:  # noqa: ARG002 (of the contract)
        return affinity_sentence(pod, self._nodes.node(row))
