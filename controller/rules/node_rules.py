"""Columns of what a node says by itself to pods: its taints, and the labels that they select."""

from typing import Final

import numpy as np

from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.pod_shapes import PodShapes
from controller.reasons.catalogue import ABSENT
from controller.rules.node_affinity import admits, pinned_names, required_affinity
from controller.rules.taint_toleration import by_taints, taint_number, tolerates_own_taints
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Pod

_FEW: Final = 16
"""Names of nodes, up to which each is tested by itself."""


class NodeRules:
    """Columns of shape (nodes.size,), kept per tolerations or affinity. Callers must not change them."""

    def __init__(self, nodes: NodeColumns, labels: NodeLabels, shapes: PodShapes) -> None:
        self._nodes = nodes
        self._labels = labels
        self._shapes = shapes

    def taint_codes(self, pod: Pod) -> Ints:
        """Return the number of the first reason among cordon, readiness and taints, 0 if none."""
        tolerations = pod.spec.tolerations
        column = self._shapes.of(
            pod,
            "taints",
            tolerations,
            lambda: NodeColumn(
                self._nodes, by_taints(tolerations, lambda node: taint_number(tolerations, node)), ABSENT
            ),
        )
        return column.current()

    def untainted(self, pod: Pod) -> Bools:
        """Return the nodes whose own taints the pod tolerates (nodeTaintsPolicy Honor)."""
        tolerations = pod.spec.tolerations
        column = self._shapes.of(
            pod,
            "own taints",
            tolerations,
            lambda: NodeColumn(
                self._nodes, by_taints(tolerations, lambda node: tolerates_own_taints(tolerations, node)), 0
            ),
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
