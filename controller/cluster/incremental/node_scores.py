"""HAMi's default node score, updated by difference. Pure."""

from collections import defaultdict
from typing import Final

import numpy as np

from controller.cluster.incremental.growth import grown
from hami_dra.api.arrays import Floats

_FIRST_SIZE: Final = 64
_Roles = tuple[int, int, int]
"""(slots, cores, memory)"""


class NodeScores:
    """HAMi's default node score, updated incrementally: per node the sums over its devices, and the
    score.

    `10 x (used slots / slots + used cores / cores + used memory / memory)`, before the pod
    (S/policy/node_policy.go:106). A node without any of the three has score 0; a role that none of
    its devices publishes counts like its slots. (HAMi gives 0 for the whole node there, which
    disables the policies, so Neuron nodes could not be packed.)

    >>> scores = NodeScores()
    >>> scores.add(0, total=(10, 100, 16_000), used=(2, 50, 4_000))
    >>> float(scores.score[0])      # 10 x (0.2 + 0.5 + 0.25)
    9.5
    >>> scores.add(0, total=(0, 0, 0), used=(-2, -50, -4_000))
    >>> float(scores.score[0])
    0.0
    """

    def __init__(self) -> None:
        self._totals: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._used: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._score: Floats = np.zeros(_FIRST_SIZE, dtype=np.float64)
        self._outdated: set[int] = set()
        """Nodes whose sums have changed since the scores were last read."""

    @property
    def score(self) -> Floats:
        """By row of the node. Callers must not change it."""
        if self._outdated:
            for node in self._outdated:
                self._score[node] = 10.0 * sum(_ratios(self._used[node], self._totals[node]))
            # Not `pop`, which searches a table as large as it was when all nodes arrived.
            self._outdated.clear()
        return self._score

    def ensure(self, length: int) -> None:
        if len(self._score) < length:
            self._score = grown(self._score, max(length, 2 * len(self._score)))

    def add(self, node: int, total: _Roles, used: _Roles) -> None:
        """Add amounts (negative to subtract) to a node."""
        totals, uses = self._totals[node], self._used[node]
        for role in range(3):
            totals[role] += total[role]
            uses[role] += used[role]
        self._outdated.add(node)

    def loads(self, node: int) -> tuple[list[int], list[int]]:
        """Return the data of the score, copied: (used, total), each of slots, cores and memory."""
        return [*self._used.get(node, (0, 0, 0))], [*self._totals.get(node, (0, 0, 0))]

    def clear(self, node: int) -> None:
        self._totals.pop(node, None)
        self._used.pop(node, None)
        self._outdated.discard(node)
        self._score[node] = 0.0


def node_terms(uses: list[int], totals: list[int]) -> list[float]:
    """Return the three summands of the score.

    >>> node_terms([2, 50, 0], [10, 100, 0])    # no memory published: it counts like the slots
    [2.0, 5.0, 2.0]
    """
    return [10.0 * ratio for ratio in _ratios(uses, totals)]


def _ratios(uses: list[int], totals: list[int]) -> list[float]:
    slots = uses[0] / totals[0] if totals[0] else 0.0
    return [uses[role] / totals[role] if totals[role] else slots for role in range(3)]
