"""The order of the fitting nodes: the runner-up with what it lost by, and all others, best first.

Called by `explain.snapshot`. The keys are those of `decide`: rank of prioritized lists, the
vendors' value of the sets, what the pod prefers of nodes, the value by the node policy, the
tie-break, the name. A node that was searched counts with what the search found, others with the
estimate made before the search. Pure.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct

from controller.decide import MOST_OVERESTIMATED, Decision, SchedulingRequest, Trace, Unschedulable
from controller.inventory import Inventory
from controller.scoring import best_node, sort_sign
from controller.views.explanation import NAME, NOMINATED, PREFERENCE, RANK, SCORE, TIE, TOPOLOGY, RunnerUp
from hami_dra.api.arrays import Ints, Positions

_WORDS: Final = {
    RANK: "it can only meet a later choice of a list (firstAvailable)",
    TOPOLOGY: "its best set of devices is worse for its vendor",
    PREFERENCE: "the pod's preferences (affinity, spread, taints) favour the other one",
    TIE: "of equal score, its best set of devices is worse for its vendor",
    NAME: "it is equal, and the name that sorts first wins",
    NOMINATED: "kube-scheduler has made room for the pod on the other one",
}
_SEARCH_ENDED: Final = "promised more, but was not searched: too many nodes had given less than they promised"
_LATER_GROUP: Final = (
    "better by itself, but nodes come first that fit more of the pods with a shared claim, "
    "or that differ more from those kube-scheduler refused"
)


class NodePlacing(Struct, frozen=True):
    """The sort keys of one node."""

    rank: int
    topology: float
    preference: int
    value: float
    tie: float


@dataclass(eq=False)
class Contenders:
    """The nodes of one decision: the chosen one, the runner-up, and the others."""

    inventory: Inventory
    request: SchedulingRequest
    trace: Trace
    answer: Decision | Unschedulable

    def __post_init__(self) -> None:
        trace, answer = self.trace, self.answer
        self._node_policy = self.request.policies.node_policy
        vain = [row for row, worth in trace.tried.items() if worth is None]
        self._fitting = trace.fitting[~np.isin(trace.fitting, vain)] if vain else trace.fitting
        self._chosen = self.inventory.nodes.index_of(answer.node) if isinstance(answer, Decision) else -1
        self._second = self._runner_up_of(self._chosen) if self._chosen >= 0 else -1
        self._first = [row for row in (self._chosen, self._second) if row >= 0]

    def all(self, most: int) -> list[int]:
        """Return the rows of all nodes: the chosen one, the runner-up, others that fit, those that do not."""
        fitting = self._in_order().tolist() if self._chosen >= 0 else []
        return list(dict.fromkeys([*self._first, *fitting, *self._unfit(fitting)]))[:most]

    def best(self, most: int) -> list[int]:
        """Return the rows of those that the answer names, with the chosen one and the runner-up before them."""
        index_of, answer = self.inventory.nodes.index_of, self.answer
        named = [name for name, _ in answer.fitting] if isinstance(answer, Decision) else answer.nodes
        rows = dict.fromkeys([*self._first, *map(index_of, named)])
        return [row for row in rows if row >= 0][:most]

    def _unfit(self, fitting: list[int]) -> list[int]:
        """Return the nodes that do not fit: those that failed for their cards first, each group by name."""
        nodes = self.inventory.nodes
        others = nodes.present[: nodes.size].copy()
        others[fitting] = False
        rows = np.flatnonzero(others)
        found: list[int] = rows[np.lexsort((nodes.rank[rows], ~self.trace.verdicts.mask[rows]))].tolist()
        return found

    def placings(self, rows: Positions) -> list[NodePlacing]:
        estimates, tried = self.trace.estimates, self.trace.tried
        columns = (estimates.rank, estimates.topology, self.trace.ranking.values, estimates.tie)
        promised = zip(*(column[rows].tolist() for column in columns), strict=True)
        found = []
        for row, (rank, topology, value, tie) in zip(rows.tolist(), promised, strict=True):
            worth = tried.get(row) or (rank, topology)
            found.append(NodePlacing(worth[0], worth[1], estimates.preference_of(row), value, tie))
        return found

    def fit(self, rows: Positions) -> list[bool]:
        """Return which of the rows fit; nodes that were not searched count by their estimate."""
        found: list[bool] = np.isin(rows, self._fitting).tolist()
        return found

    def _in_order(self) -> Ints:
        """Return the rows of all nodes that fit, best estimate first."""
        rows, estimates = self._fitting, self.trace.estimates
        values = self.trace.ranking.values[rows]
        keys = (
            self.inventory.nodes.rank[rows],
            -estimates.tie[rows],
            sort_sign(self._node_policy) * values,
            *([] if estimates.preference is None else [-estimates.preference[rows]]),
            -estimates.topology[rows],
            -estimates.rank[rows],
        )
        return rows[np.lexsort(keys)]

    def _runner_up_of(self, chosen: int) -> int:
        """Return the row of the node that would have been chosen without `chosen`; -1 if none fits."""
        rows, estimates = self._fitting[self._fitting != chosen], self.trace.estimates
        if not rows.size:
            return -1
        for key in (estimates.rank, estimates.topology, estimates.preference):
            if key is None:
                continue
            mine = key[rows]
            rows = rows[mine == mine.max()]
        nodes = self.inventory.nodes
        return best_node(self.trace.ranking.values, nodes.rank, rows, self._node_policy, estimates.tie)

    def _overestimated(self) -> int:
        """Return how many searched nodes gave less than their estimate."""
        estimates = self.trace.estimates
        return sum(
            worth < (int(estimates.rank[row]), float(estimates.topology[row]))
            for row, worth in self.trace.tried.items()
            if worth is not None
        )

    def runner_up(self) -> RunnerUp | None:
        """Return the runner-up, and why it came after the chosen node."""
        if self._second < 0:
            return None
        first, other = self.placings(np.array(self._first, dtype=np.intp))
        nodes = self.inventory.nodes
        because, lost_by = NAME, 0.0
        sign = -sort_sign(self._node_policy)
        for key, ahead in (
            (RANK, float(first.rank - other.rank)),
            (TOPOLOGY, first.topology - other.topology),
            (PREFERENCE, float(first.preference - other.preference)),
            (SCORE, sign * (first.value - other.value)),
            (TIE, first.tie - other.tie),
        ):
            if ahead:
                because, lost_by = key, ahead
                break
        if lost_by < 0 and nodes.names[self._chosen] == self.request.preferred_node:
            because, lost_by = NOMINATED, 0.0
        if because == SCORE:
            better = "the lower" if sign < 0 else "the higher"
            text = f"{other.value:.2f} against {first.value:.2f}, with {self._node_policy} {better} wins"
        else:
            text = _WORDS[because]
        if lost_by < 0:
            text = _SEARCH_ENDED if self._overestimated() >= MOST_OVERESTIMATED else _LATER_GROUP
        return RunnerUp(nodes.names[self._second], other.value, lost_by, because, text)
