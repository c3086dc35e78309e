"""Preferred node affinity (kube-scheduler's NodeAffinity): the weights of the terms that a node meets, summed."""

from collections.abc import Sequence

import numpy as np

from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.pods.affinity_terms import bounded_weight
from controller.rules.filter_state import FilterState
from controller.rules.preferences.score import PluginScore, default_normalized
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Node, Pod, PreferredSchedulingTerm
from hami_dra.api.selectors import term_matches, term_problem


def node_affinity_score(state: FilterState, pod: Pod) -> PluginScore | None:
    """Return the pod's score; None: it prefers no node, or a term cannot be parsed."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    terms = affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    if not terms or any(term_problem(each.preference) for each in terms if each.weight):
        return None
    column = state.shapes.of(pod, "preferred nodes", terms, lambda: _weights(state, terms))
    return lambda fitting: default_normalized(column.current()[fitting])


def _weights(state: FilterState, terms: Sequence[PreferredSchedulingTerm]) -> NodeColumn:
    """Return the sums by node: one by one where few changed, else by columns of labels."""

    def of_node(node: Node) -> int:
        name, labels = node.metadata.name, node.metadata.labels
        return sum(bounded_weight(each.weight) for each in terms if term_matches(each.preference, name, labels))

    def of_all() -> Ints:
        total: Ints = np.zeros(state.nodes.size, dtype=np.int64)
        for each in terms:
            total += bounded_weight(each.weight) * state.labels.of_term(each.preference)
        return total

    return NodeColumn(state.nodes, of_node, 0, judge_all=of_all)
