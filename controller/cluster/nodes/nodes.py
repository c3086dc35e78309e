"""Nodes as columns: allocatable resources, usage by pods, and everything that repels pods. Written
by the inventory only.

A row stays the same while its node lives. Nodes that pods or slices mention before the Node object
is seen have no row yet; usage is stored by name until then.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.incremental.changes import ChangeLog
from controller.cluster.incremental.node_scores import NodeScores
from controller.cluster.incremental.saturation import MOST
from controller.cluster.pod_resources import Amounts, amounts, pod_requests
from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.api.core import Node, Pod, Taint

_FIRST_SIZE: Final = 64
_FIRST_RESOURCES: Final = 8
_UNKNOWN: Final = 0
"""Number of all resources that no node offers: tenants may name any number of them, and they must use no memory."""
_NOTHING: Final[Mapping[str, int]] = {}
_UNDECLARED: Final = dict.fromkeys(("cpu", "memory", "pods", "ephemeral-storage"), MOST)
_ALWAYS_DECLARED: Final = frozenset({"cpu", "memory", "pods"})
UNSCHEDULABLE_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
NOT_READY_TAINT: Final = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
UNREACHABLE_TAINT: Final = Taint(key="node.kubernetes.io/unreachable", effect="NoSchedule")


class Placed(Struct, frozen=True):
    """A pod that counts on a node: bound to it, or about to be."""

    pod: Pod
    node: str
    requests: Amounts


class NodeColumns:
    """Columns of shape (capacity,); the first `size` rows are in use or were.

    `present` bool. `rank` int64: position of the name among all names, ascending. `score`: see
    `NodeScores`.
    """

    def __init__(self) -> None:
        self.size = 0
        self.count = 0
        self.names: list[str] = []
        self.nodes: list[Node | None] = []
        self.present: Bools = np.zeros(_FIRST_SIZE, dtype=np.bool_)
        self.changes = ChangeLog()
        """Rows where a node came, went, or changed in what keeps pods away: labels, taints, cordon, readiness."""
        self.image_changes = ChangeLog()
        """Rows where a node came, went, or has other images."""
        self.loads = ChangeLog()
        """Rows where what a node offers, or what its pods use of it, changed."""
        self.label_keys: Counter[str] = Counter()
        """Key of a label → number of nodes that have it. Tenants may name any other topology key."""
        self.arrivals = 0
        """Increases whenever a node gets or loses its row."""
        self.scores = NodeScores()
        self._resources: dict[str, int] = {"": _UNKNOWN}
        """Resource that some node offers or did → its number. What pods ask for beyond that is no
        node's, and gets none.
        """
        self._offers: Ints = np.zeros((_FIRST_RESOURCES, _FIRST_SIZE), dtype=np.int64)
        self._uses: Ints = np.zeros((_FIRST_RESOURCES, _FIRST_SIZE), dtype=np.int64)
        """By number of the resource and row; all 0 for `_UNKNOWN`."""
        self._used_by_name: defaultdict[str, Amounts] = defaultdict(Counter)
        self._index: dict[str, int] = {}
        self._free: list[int] = []
        self._rank: Ints | None = None

    # -- reading -----------------------------------------------------------------------------------

    @property
    def score(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Shape (size,)."""
        return self.scores.score[: self.size]

    @property
    def rank(self) -> Ints:
        """Position of the name among all names. Shape (size,). Recomputed when nodes come or go."""
        if self._rank is None or len(self._rank) != self.size:
            self._rank = np.zeros(self.size, dtype=np.int64)
            order = sorted(range(self.size), key=lambda row: self.names[row])
            self._rank[order] = np.arange(self.size)
        return self._rank

    def index_of(self, name: str) -> int:
        """Return the row, or -1 if there is no such node."""
        return self._index.get(name, -1)

    def rows_of(self, names: Iterable[str]) -> list[int]:
        return [self._index[name] for name in names if name in self._index]

    def named(self, names: Iterable[str]) -> Bools:
        """Return which nodes have one of the names. Shape (size,)."""
        mask = np.zeros(self.size, dtype=np.bool_)
        mask[self.rows_of(names)] = True
        return mask

    def node(self, row: int) -> Node:
        found = self.nodes[row]
        if found is None:
            raise IndexError(f"row {row} is free")
        return found

    def offers(self, resource: str) -> Ints:
        """`status.allocatable[resource]`, 0 where it is not offered. Shape (size,).

        Every kubelet declares cpu, memory and pods; a node that declares none of them (in a file)
        is not full for that reason: they and ephemeral-storage are `MOST` then.
        """
        return self._offers[self._resources.get(resource, _UNKNOWN), : self.size]

    def used(self, resource: str) -> Ints:
        """Return the usage of a resource that some node offers, else 0. Shape (size,)."""
        return self._uses[self._resources.get(resource, _UNKNOWN), : self.size]

    def is_offered(self, resource: str) -> bool:
        """Return whether some node offers the resource, or did."""
        return self._resources.get(resource, _UNKNOWN) != _UNKNOWN

    def loads_of(self, resources: Iterable[str], rows: Positions) -> tuple[Ints, Ints]:
        """Return what some nodes offer and what is used of it. Each of shape (resources, rows)."""
        numbers = np.array([self._resources.get(resource, _UNKNOWN) for resource in resources], dtype=np.intp)[:, None]
        return self._offers[numbers, rows], self._uses[numbers, rows]

    def load_of(self, resource: str, row: int) -> tuple[int, int]:
        number = self._resources.get(resource, _UNKNOWN)
        return self._offers.item(number, row), self._uses.item(number, row)

    # -- writing -----------------------------------------------------------------------------------

    def put(self, node: Node) -> int:
        name = node.metadata.name
        row = self._index.get(name, -1)
        if row < 0:
            row = self._free.pop() if self._free else self._next_row()
            self._index[name] = row
            self.names[row] = name
            self.present[row] = True
            self.count += 1
            self.arrivals += 1
            self._rank = None
            for resource, used in self._used_by_name.get(name, _NOTHING).items():
                if number := self._resources.get(resource, _UNKNOWN):
                    self._uses[number, row] = min(used, MOST)
        before, self.nodes[row] = self.nodes[row], node
        self._count_labels(before, node)
        offered = _offered(node)
        self._offers[:, row] = 0
        for resource, amount in offered.items():
            number = self._number(resource)
            self._offers[number, row] = amount
        if before is None or before.status.allocatable != node.status.allocatable:
            self.loads.add(row)
        if before is None or not _alike(before, node):
            self.changes.add(row)
        if before is None or before.status.images != node.status.images:
            self.image_changes.add(row)
        return row

    def remove(self, name: str) -> int:
        """Return the freed row, or -1."""
        row = self._index.pop(name, -1)
        if row < 0:
            return -1
        self._count_labels(self.nodes[row], None)
        self.nodes[row] = None
        self.names[row] = ""
        self.present[row] = False
        self.count -= 1
        self.arrivals += 1
        self._offers[:, row] = self._uses[:, row] = 0
        self.scores.clear(row)
        self._free.append(row)
        self._rank = None
        for log in (self.changes, self.image_changes, self.loads):
            log.add(row)
        return row

    def use(self, name: str, requests: Mapping[str, int], sign: int) -> None:
        """Add (+1) or subtract (-1) the requests of a pod on its node."""
        by_name = self._used_by_name[name]
        row = self._index.get(name, -1)
        for resource, wanted in requests.items():
            used = by_name[resource] = by_name.get(resource, 0) + sign * wanted
            if not used:
                del by_name[resource]
            if row >= 0 and (number := self._resources.get(resource, _UNKNOWN)):
                self._uses[number, row] = min(used, MOST)
        if row >= 0:
            self.loads.add(row)
        if not by_name:
            del self._used_by_name[name]

    def _count_labels(self, before: Node | None, after: Node | None) -> None:
        for node, change in ((after, +1), (before, -1)):
            for key in node.metadata.labels if node is not None else ():
                self.label_keys[key] += change
                if not self.label_keys[key]:
                    del self.label_keys[key]

    def _number(self, resource: str) -> int:
        """Return the number of an offered resource; a new one gets a row, with its usage so far."""
        number = self._resources.get(resource)
        if number is not None:
            return number
        number = self._resources[resource] = len(self._resources)
        if number == len(self._offers):
            self._offers, self._uses = (
                np.concatenate((each, np.zeros_like(each))) for each in (self._offers, self._uses)
            )
        for name, used in self._used_by_name.items():
            if resource in used and (row := self._index.get(name, -1)) >= 0:
                self._uses[number, row] = min(used[resource], MOST)
        return number

    def _next_row(self) -> int:
        if self.size == len(self.present):
            fresh = np.zeros(2 * self.size, dtype=np.bool_)
            fresh[: self.size] = self.present
            self.present = fresh
            self._offers, self._uses = (np.hstack((each, np.zeros_like(each))) for each in (self._offers, self._uses))
        self.names.append("")
        self.nodes.append(None)
        self.size += 1
        self.scores.ensure(self.size)
        return self.size - 1


def _offered(node: Node) -> Amounts:
    found = amounts(node.status.allocatable)
    if found.keys().isdisjoint(_ALWAYS_DECLARED):
        found.update(_UNDECLARED)
    return found


def effective_taints(node: Node) -> tuple[Taint, ...]:
    """What keeps pods off a node: first what the node life-cycle controller makes of a cordon and
    of a node that is not ready (kube-scheduler sees these taints a moment later), then the node's
    own taints.
    """
    cordon = (UNSCHEDULABLE_TAINT,) if node.spec.unschedulable else ()
    return (*cordon, *_condition_taints(node), *own_taints(node))


def own_taints(node: Node) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.spec.taints if taint.effect in {"NoSchedule", "NoExecute"})


def _condition_taints(node: Node) -> tuple[Taint, ...]:
    """Return the taints of the node's conditions. Nodes in files may have no conditions: then there are none."""
    return tuple(
        UNREACHABLE_TAINT if condition.status == "Unknown" else NOT_READY_TAINT
        for condition in node.status.conditions
        if condition.type == "Ready" and condition.status != "True"
    )


def _alike(one: Node, other: Node) -> bool:
    """Return whether the nodes are equal for the pods that fit and prefer them: heartbeats and
    other resources do not matter.
    """
    return (
        one.metadata.labels == other.metadata.labels
        and effective_taints(one) == effective_taints(other)
        and one.spec.taints == other.spec.taints
        and one.status.declared_features == other.status.declared_features
    )


def place(pod: Pod, node: str) -> Placed:
    return Placed(pod, node, pod_requests(pod))
