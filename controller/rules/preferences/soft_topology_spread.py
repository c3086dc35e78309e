"""Soft topologySpreadConstraints, `whenUnsatisfiable: ScheduleAnyway`, scored like kube-scheduler's
PodTopologySpread plugin (scoring.go).

Each constraint adds (matching pods in the node's domain) x ln(domains + 2) + maxSkew - 1; the fewer
the better. Two zones among the fitting nodes, three matching pods in a and one in b, maxSkew 1:

    a  3 x ln 4 = 4.16 -> 4    normalised  100 x (4 + 1 - 4) / 4 = 25
    b  1 x ln 4 = 1.39 -> 1                100 x (4 + 1 - 1) / 4 = 100
"""

import math
from collections.abc import Sequence

import numpy as np

from controller.cluster.nodes.nodes import Placed
from controller.rules.counted_shape import CountedShape
from controller.rules.filter_state import FilterState
from controller.rules.pod_topology_spread import SpreadConstraint, is_hard, nodes_with_keys, spread_shape
from controller.rules.preferences.score import MOST, PluginScore, quotients
from hami_dra.api.arrays import Bools, Floats, Ints, Positions
from hami_dra.api.core import Pod
from hami_dra.api.names import HOSTNAME_LABEL
from hami_dra.api.selectors import selector_problem


def soft_spread_score(state: FilterState, pod: Pod, own: Placed | None) -> PluginScore | None:
    """Return the pod's score; None: it has no soft constraint, or one cannot be parsed."""
    soft = [each for each in pod.spec.topology_spread_constraints if not is_hard(each)]
    if not soft or any(selector_problem(each.label_selector) for each in soft):
        return None
    constraints, key = spread_shape(pod, soft)
    shape = state.shapes.of(pod, "soft spread", key, lambda: SpreadScore(state, pod, constraints), len(constraints))
    return shape.current(own).normalized


class SpreadScore(CountedShape):
    """The score of pods of one shape. `pod`: one of them."""

    def __init__(self, state: FilterState, pod: Pod, constraints: Sequence[SpreadConstraint]) -> None:
        super().__init__(state, [each.counted for each in constraints], leaving=False)
        self._pod = pod
        self._constraints = constraints
        self._complete: Bools = np.zeros(0, dtype=np.bool_)
        """The nodes with all topology keys."""
        self._counted: list[Positions] = []
        """By constraint the nodes that its policies include."""

    def normalized(self, fitting: Positions) -> Ints:
        self._refresh()
        scored = self._complete[fitting]
        scores = np.zeros(len(fitting), dtype=np.int64)
        rows = fitting[scored]
        if rows.size:
            raw = self._raw(rows)
            most, fewest = int(raw.max()), int(raw.min())
            scores[scored] = MOST if most == 0 else quotients(MOST * (most + fewest - raw), most)
        return scores

    def _refresh(self) -> None:
        """Bring up to date what depends on the nodes alone."""
        nodes = self._state.nodes
        version = nodes.changes.version, nodes.size
        if version == self._seen:
            return
        self._complete = nodes_with_keys(self._state, self._constraints)
        self._counted = []
        for each in self._constraints:
            self._counted.append((self._complete & each.includes(self._state.rules, self._pod)).nonzero()[0])
        self._seen = version

    def _raw(self, rows: Positions) -> Ints:
        """Return the scores before normalisation, shape (len(rows),); lower is better."""
        total: Floats = np.zeros(len(rows), dtype=np.float64)
        for each, counts, counted in zip(self._constraints, self.counts, self._counted, strict=True):
            per_node = self._column(counts)
            if each.constraint.topology_key == HOSTNAME_LABEL:
                pods, domains = per_node[rows], len(rows)
            else:
                domain = self._state.labels.domains(each.constraint.topology_key)
                here = domain[rows]
                table = np.bincount(domain[counted], weights=per_node[counted], minlength=int(domain.max()) + 1)
                pods, domains = table[here].astype(np.int64), int(np.count_nonzero(np.bincount(here)))
            total += pods * math.log(domains + 2) + (each.constraint.max_skew - 1)
        rounded: Ints = np.floor(total + 0.5).astype(np.int64)  # math.Round: no score is negative
        return rounded
