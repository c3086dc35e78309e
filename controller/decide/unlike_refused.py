"""Nodes in an order that leads away from those that kube-scheduler refused for the pod. Pure.

One refusal says little: something changed meanwhile. The second says that kube-scheduler knows a
reason that hami-dra does not, in a plugin, a profile or an extender of its own, and such a reason
usually applies to all nodes of a zone or of a shape. So nodes unlike the refused ones come first:

    refused: n0 (zone a, large), n1 (zone a, small)

    node  zone  shape  likeness
    n2    a     large  2 + 1 = 3
    n3    b     large  0 + 1 = 1
    n4    b     tiny   0 + 0 = 0    -> first

With every further refusal the zones and shapes refused least often come first, so that each of them
is tried before any is tried again.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Final

import numpy as np

from controller.inventory.inventory import Inventory
from controller.inventory.layouts import INSTANCE_TYPE
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Node

_ZONE: Final = "topology.kubernetes.io/zone"
_ENOUGH: Final = 2
"""Refusals from which on nodes are ordered."""


def unlike_refused(inventory: Inventory, refusals: Mapping[str, int], candidates: Ints) -> Iterator[Ints]:
    """Yield the candidates in groups, those least like the refused nodes first.

    `refusals`: name of a node → how often it was refused; `candidates`: rows.
    """
    if sum(refusals.values()) < _ENOUGH:
        yield candidates
        return
    nodes = inventory.nodes
    zones: Counter[str] = Counter()
    shapes: Counter[Hashable] = Counter()
    for name, times in refusals.items():
        if (row := nodes.index_of(name)) >= 0:
            zones[_zone(nodes.node(row))] += times
            shapes[_shape(nodes.node(row))] += times
    likeness = np.array(
        [zones[_zone(node)] + shapes[_shape(node)] for node in map(nodes.node, candidates.tolist())], dtype=np.int64
    )
    for count in np.unique(likeness).tolist():
        yield candidates[likeness == count]


def _zone(node: Node) -> str:
    return node.metadata.labels.get(_ZONE, "")


def _shape(node: Node) -> Hashable:
    """Return the instance type, or what the node offers where it has none."""
    kind = node.metadata.labels.get(INSTANCE_TYPE)
    return kind if kind is not None else tuple(sorted(node.status.allocatable.items()))
