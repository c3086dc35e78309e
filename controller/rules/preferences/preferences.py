"""What a pod prefers of the nodes that it fits, as kube-scheduler scores it: the plugins' formulas,
normalisation and default weights (getDefaultPlugins in
pkg/scheduler/apis/config/v1/default_plugins.go).

Only pods that are concerned pay: those that state a preference (preferred node affinity, preferred
inter-pod terms, ScheduleAnyway), that a pod on some node states one about, or that do not tolerate
a PreferNoSchedule taint of some node. For them image locality counts, too; alone it says nothing:
it would draw every replica of a workload to the nodes of the first, whatever the node policy.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.nodes import Placed
from controller.cluster.pods.affinity_terms import bounded_weight
from controller.cluster.pods.existing_terms import ExistingTerms
from controller.rules.filter_state import FilterState
from controller.rules.pod_size import excess_of
from controller.rules.preferences.image_locality import IMAGE_VOLUMES_COUNTED, ImageLocality
from controller.rules.preferences.inter_pod_preference import inter_pod_score
from controller.rules.preferences.score import PluginScore, default_normalized
from controller.rules.preferences.soft_topology_spread import soft_spread_score
from controller.rules.taint_states import TaintVerdicts
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Node, Pod, PreferredSchedulingTerm, Toleration
from hami_dra.api.selectors import term_matches, term_problem, tolerates


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


_PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"


class PreferNoSchedule:
    """Taints with effect PreferNoSchedule: the fewer a pod does not tolerate, the better."""

    def __init__(self, state: FilterState) -> None:
        self._nodes, self._shapes = state.nodes, state.shapes
        self._states = state.rules.taints
        self._taints = TaintVerdicts(self._states, lambda node: _untolerated((), node))
        self._seen = -1
        self._is_used = False

    def score_for(self, pod: Pod) -> PluginScore | None:
        """Return the pod's score; None: no node has such a taint that the pod does not tolerate."""
        version = self._nodes.changes.version
        if version != self._seen:
            self._is_used = bool(self._taints.current().any())
            self._seen = version
        if not self._is_used:
            return None
        tolerations = tuple([each for each in pod.spec.tolerations if each.effect in {"", _PREFER_NO_SCHEDULE}])
        column = self._shapes.of(
            pod,
            "preferred taints",
            tolerations,
            lambda: TaintVerdicts(self._states, lambda node: _untolerated(tolerations, node)),
        )
        if not column.current().any():
            return None
        return lambda fitting: default_normalized(column.current()[fitting], reverse=True)


def _untolerated(tolerations: tuple[Toleration, ...], node: Node) -> int:
    return sum(
        taint.effect == _PREFER_NO_SCHEDULE and not any(tolerates(each, taint) for each in tolerations)
        for taint in node.spec.taints
    )


WEIGHTS: Final[Mapping[str, int]] = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ImageLocality": 1,
}
"""kube-scheduler's plugin → its weight."""


class PreferenceScores(Struct, frozen=True):
    """The scores of the nodes that one pod fits. `total` and the columns of `by_plugin` have the
    shape (nodes.size,), and 0 in all other rows.
    """

    total: Ints
    """The plugins' scores times their weights, summed; higher is better."""
    by_plugin: Mapping[str, Ints]
    """0 to 100, by kube-scheduler's name of the plugin; without those that say nothing."""

    def terms(self, row: int) -> list[tuple[str, int, int]]:
        """Return (plugin, weight, score) of one node."""
        return [(plugin, WEIGHTS[plugin], int(column[row])) for plugin, column in self.by_plugin.items()]


class PodPreferences(Struct, frozen=True):
    """What one pod prefers. For use at once: it reads columns that change."""

    size: int
    """Of the columns."""
    plugins: Mapping[str, PluginScore]

    def scores(self, fitting: Positions) -> PreferenceScores:
        """Return the scores of the nodes that the pod fits."""
        total = np.zeros(self.size, dtype=np.int64)
        by_plugin: dict[str, Ints] = {}
        for name, plugin in self.plugins.items():
            column = by_plugin[name] = np.zeros(self.size, dtype=np.int64)
            if fitting.size:
                column[fitting] = plugin(fitting)
                total += WEIGHTS[name] * column
        return PreferenceScores(total, by_plugin)


class NodePreferences:
    """`existing`: the weighted terms of the pods that count on nodes."""

    def __init__(self, state: FilterState, existing: ExistingTerms) -> None:
        self._state = state
        self._existing = existing
        self._taints = PreferNoSchedule(state)
        self._images = ImageLocality(state.nodes)

    def of(self, pod: Pod, own: Placed | None) -> PodPreferences | None:
        """Return what the pod prefers; None if nothing, which takes next to no time. `own`: where
        the inventory counts the pod already; that does not count.
        """
        if excess_of(pod) is not None:
            return None
        affinity = node_affinity_score(self._state, pod)
        spread = soft_spread_score(self._state, pod, own) if pod.spec.topology_spread_constraints else None
        inter_pod = inter_pod_score(self._state, self._existing, pod, own)
        taints = self._taints.score_for(pod)
        if affinity is None and spread is None and inter_pod is None and taints is None:
            return None
        scores: dict[str, PluginScore | None] = {
            "TaintToleration": taints,
            "NodeAffinity": affinity,
            "PodTopologySpread": spread,
            "InterPodAffinity": inter_pod,
            "ImageLocality": self._images.score_for(pod),
        }
        return PodPreferences(self._state.nodes.size, {name: each for name, each in scores.items() if each is not None})

    def set_version(self, version: tuple[int, int]) -> None:
        """Score like kube-scheduler of this version (major, minor); without it like the newest."""
        self._images.counts_volumes = version >= IMAGE_VOLUMES_COUNTED
