"""Numbers per node that survive the node: stored by its name, and as a column. Pure."""

import numpy as np

from controller.cluster.nodes.nodes import NodeColumns
from hami_dra.api.arrays import Ints


class NodeCounts:
    """A count per node; 0 where nothing was added. `version` increases with every change.

    Pods may be seen before their node, and a node that goes may come back: so names count, and the
    column is made of them again when nodes get or lose their rows.
    """

    def __init__(self, nodes: NodeColumns) -> None:
        self.version = 0
        self._nodes = nodes
        self._by_node: dict[str, int] = {}
        self._arrivals = -1
        self._column: Ints = np.zeros(0, dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self._by_node)

    def add(self, node: str, change: int) -> None:
        self.version += 1
        count = self._by_node.pop(node, 0) + change
        if count:
            self._by_node[node] = count
        row = self._nodes.index_of(node)
        if row >= 0 and self._arrivals == self._nodes.arrivals:
            self._column[row] = count

    def column(self) -> Ints:
        """Return the counts, shape (nodes.size,). Not to be changed by the caller."""
        nodes = self._nodes
        if self._arrivals != nodes.arrivals:
            self._column = np.zeros(nodes.size, dtype=np.int64)
            for name, count in self._by_node.items():
                row = nodes.index_of(name)
                if row >= 0:
                    self._column[row] = count
            self._arrivals = nodes.arrivals
        return self._column

    def without(self, node: str, count: int) -> Ints:
        """Return the column less `count` on one node."""
        column, row = self.column(), self._nodes.index_of(node)
        if row >= 0 and count:
            column = column.copy()
            column[row] -= count
        return column
