"""One number per node row, made of the node object alone: a verdict on taints or labels, the domain of a label.

Used by node fit and topology spread. Made anew only for the nodes that changed since it was last read.
"""

from collections.abc import Callable

import numpy as np

from controller.inventory.columns import grown
from controller.inventory.nodes import NodeColumns
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Node


class NodeColumn:
    """`judge` is asked once per node and change; rows without a node have `absent`."""

    def __init__(self, judge: Callable[[Node], int], absent: int) -> None:
        self._judge = judge
        self._absent = absent
        self._version = -1
        self._values: Ints = np.zeros(0, dtype=np.int64)

    def of(self, nodes: NodeColumns) -> Ints:
        """Shape (size,). Not to be changed by the caller."""
        if self._version != nodes.changes.version:
            changed = None if self._version < 0 else nodes.changes.since(self._version)
            if len(self._values) < nodes.size:
                self._values = grown(self._values, len(nodes.present), self._absent)
            for row in range(nodes.size) if changed is None else changed.tolist():
                node = nodes.nodes[row]
                self._values[row] = self._absent if node is None else self._judge(node)
            self._version = nodes.changes.version
        return self._values[: nodes.size]
