"""Nodes by what their taints say: most nodes of a cluster are alike, and a pod's tolerations are compared
with one of each. Pure.
"""

from collections.abc import Callable, Hashable
from typing import Final

import numpy as np

from controller.cluster.incremental.growth import Interned
from controller.cluster.nodes.node_column import NodeColumn
from controller.cluster.nodes.nodes import NodeColumns, effective_taints
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Node

_MOST: Final = 1 << 12
"""States that are kept, those that no node has any more included; more if there are many nodes: each may have its own."""


class TaintStates:
    """`samples`: a node for each number that `current` returns; 0 is no node.

    Nodes 0 and 2 have no taints, node 1 is cordoned, and there is none in row 3:

        current [1, 2, 1, 0]    samples [None, node 0, node 1]
    """

    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._begin()

    def _begin(self) -> None:
        self.samples: list[Node | None] = [None]
        self._states: Interned[Hashable] = Interned()
        self._states.number(None)
        self._column = NodeColumn(self._nodes, self._number, 0)

    @property
    def version(self) -> tuple[int, int]:
        return self._nodes.changes.version, self._nodes.size

    def current(self) -> Ints:
        """Return the numbers, shape (size,). Not to be changed by the caller."""
        if len(self.samples) > max(_MOST, 2 * self._nodes.size):
            self._begin()
        return self._column.current()

    def _number(self, node: Node) -> int:
        taints = tuple([(each.key, each.value, each.effect) for each in (*effective_taints(node), *node.spec.taints)])
        number = self._states.number((node.spec.unschedulable, taints))
        if number == len(self.samples):
            self.samples.append(node)
        return number


class TaintVerdicts:
    """What `judge` says of each node; rows without a node have `absent`. It reads nothing but taints."""

    def __init__(self, states: TaintStates, judge: Callable[[Node], int], absent: int = 0) -> None:
        self._states = states
        self._judge = judge
        self._absent = absent
        self._samples: list[Node | None] = []
        self._verdicts: list[int] = []
        """By number of the state."""
        self._version = -1, -1
        self._values: Ints = np.zeros(0, dtype=np.int64)

    def current(self) -> Ints:
        """Return the verdicts, shape (size,). Not to be changed by the caller."""
        if self._version != self._states.version:
            numbers, samples = self._states.current(), self._states.samples
            if samples is not self._samples:
                self._samples, self._verdicts = samples, []
            self._verdicts += [
                self._absent if each is None else self._judge(each) for each in samples[len(self._verdicts) :]
            ]
            self._values = np.array(self._verdicts, dtype=np.int64)[numbers]
            self._version = self._states.version
        return self._values
