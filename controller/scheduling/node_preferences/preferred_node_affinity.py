"""Preferred node affinity (kube-scheduler's NodeAffinity): the weights of the terms that a node meets, summed."""

from collections.abc import Iterable

import numpy as np

from controller.scheduling.node_filter.affinity_terms import bounded_weight
from controller.scheduling.node_filter.filter_state import FilterState
from controller.scheduling.node_filter.node_column import NodeColumn
from controller.scheduling.node_preferences.score import default_normalized
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Node, Pod, PreferredSchedulingTerm
from hami_dra.api.selectors import term_matches, term_problem


class PreferredNodeAffinity:
    def __init__(self, state: FilterState) -> None:
        self._nodes, self._labels, self._shapes = state.nodes, state.labels, state.shapes

    def score_for(self, pod: Pod) -> "NodeAffinityScore | None":
        """Return the pod's score; None: it prefers no node, or a term cannot be parsed."""
        affinity = pod.spec.affinity
        if affinity is None or affinity.node_affinity is None:
            return None
        terms = affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
        if not terms or any(term_problem(each.preference) for each in terms if each.weight):
            return None
        return NodeAffinityScore(
            self._shapes.of(
                pod,
                "preferred nodes",
                terms,
                lambda: NodeColumn(
                    self._nodes, lambda node: _weight(terms, node), 0, judge_all=lambda: self._weights(terms)
                ),
            )
        )

    def _weights(self, terms: Iterable[PreferredSchedulingTerm]) -> Ints:
        """Return the weights of all nodes by columns of their labels."""
        total: Ints = np.zeros(self._nodes.size, dtype=np.int64)
        for each in terms:
            total += bounded_weight(each.weight) * self._labels.of_term(each.preference)
        return total


class NodeAffinityScore:
    def __init__(self, column: NodeColumn) -> None:
        self._column = column

    def normalized(self, fitting: Positions) -> Ints:
        return default_normalized(self._column.current()[fitting])


def _weight(terms: tuple[PreferredSchedulingTerm, ...], node: Node) -> int:
    name, labels = node.metadata.name, node.metadata.labels
    return sum(bounded_weight(each.weight) for each in terms if term_matches(each.preference, name, labels))
