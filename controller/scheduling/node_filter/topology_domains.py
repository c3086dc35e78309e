"""Topology domains: per node the number of its value of one label."""

from functools import partial
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import LruCache
from controller.scheduling.node_filter.node_column import NodeColumn
from controller.scheduling.node_filter.nodes import NodeColumns
from hami_dra.api import names
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Node

_KEYS_KEPT: Final = 256
NO_DOMAIN: Final = -1
"""The node lacks the label."""
HOSTNAME: Final = names.HOSTNAME_LABEL


class TopologyDomains:
    """The domains of every topology key in use; they change with `nodes.changes` only. Keys that no
    node has take no place.
    """

    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._kept: LruCache[_Domains] = LruCache(_KEYS_KEPT)
        self._none: Ints = np.zeros(0, dtype=np.int64)

    def of(self, key: str) -> Ints:
        """Return the number of each node's domain, `NO_DOMAIN` where it has none. Shape (size,).
        Not to be changed by the caller.
        """
        if key not in self._nodes.label_keys:
            if len(self._none) != self._nodes.size:
                self._none = np.full(self._nodes.size, NO_DOMAIN, dtype=np.int64)
            return self._none
        return self._kept.get(key, partial(_Domains, self._nodes, key)).current()


class _Domains:
    def __init__(self, nodes: NodeColumns, key: str) -> None:
        self._nodes = nodes
        self._key = key
        self._numbers: dict[str, int] = {}
        self._column = NodeColumn(nodes, self._number, NO_DOMAIN)

    def current(self) -> Ints:
        if len(self._numbers) > 2 * self._nodes.size + 64:
            # values of nodes that are long gone
            self._numbers = {}
            self._column = NodeColumn(self._nodes, self._number, NO_DOMAIN)
        return self._column.current()

    def _number(self, node: Node) -> int:
        value = node.metadata.labels.get(self._key)
        return NO_DOMAIN if value is None else self._numbers.setdefault(value, len(self._numbers))


def place_in_words(node: Node, key: str) -> str:
    """Return where the node is by one topology key: `in zone a`, or `on this node`."""
    value = node.metadata.labels.get(key, "")
    return "on this node" if key == HOSTNAME else f"in {key.rpartition('/')[2]} {value}"
