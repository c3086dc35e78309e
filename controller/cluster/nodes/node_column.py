"""One number per node row, made of the node object alone: a verdict on taints or labels, the domain
of a label.

Used by node fit, topology spread and the overview.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from controller.cluster.incremental.changes import ChangeLog
from controller.cluster.incremental.derived_column import DerivedColumns
from controller.cluster.incremental.growth import grown
from controller.cluster.nodes.nodes import NodeColumns
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.api.core import Node

_FEW: Final = 4
"""Up to this many rows are judged one by one."""


class NodeColumn(DerivedColumns):
    """`judge` is called once per node and change; rows without a node have `absent`. `log`: the
    changes that matter, else all that may keep pods away. `judge_all`: judges all rows at once,
    shape (size,), for when many changed.
    """

    def __init__(
        self,
        nodes: NodeColumns,
        judge: Callable[[Node], int],
        absent: int,
        log: ChangeLog | None = None,
        judge_all: Callable[[], Ints | Bools] | None = None,
    ) -> None:
        super().__init__(nodes.changes if log is None else log)
        self._nodes = nodes
        self._judge = judge
        self._judge_all = judge_all
        self._absent = absent
        self._values: Ints = np.zeros(0, dtype=np.int64)

    def current(self) -> Ints:
        """Return the numbers, shape (size,). Not to be changed by the caller."""
        self.refresh()
        return self._values[: self._nodes.size]

    def _grow(self) -> int:
        if len(self._values) < self._nodes.size:
            self._values = grown(self._values, len(self._nodes.present), self._absent)
        return self._nodes.size

    def _update(self, rows: Positions, /) -> None:
        nodes = self._nodes.nodes
        if self._judge_all is not None and len(rows) > _FEW:
            present = self._nodes.present[rows]
            self._values[rows] = np.where(present, self._judge_all()[rows], self._absent)
            return
        for row in rows.tolist():
            node = nodes[row]
            self._values[row] = self._absent if node is None else self._judge(node)
