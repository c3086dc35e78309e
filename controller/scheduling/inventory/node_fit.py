"""Nodes that fit a pod, devices apart: cordons, taints, affinity, resources, hard topology spread.

Called by `decide` through the inventory. Verdicts are cached per shape of pod (tolerations,
affinity, resources) and updated for nodes that changed, or whose pods did; spread is column
arithmetic. Constraints not modelled here (volumes, host ports, inter-pod affinity, ...) become
known when kube-scheduler refuses the node.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.inventory.changes import LruCache
from controller.scheduling.inventory.derived_column import LogReader
from controller.scheduling.inventory.node_column import NodeColumn
from controller.scheduling.inventory.nodes import (
    NOT_READY_TAINT,
    UNREACHABLE_TAINT,
    UNSCHEDULABLE_TAINT,
    NodeColumns,
    Placed,
    effective_taints,
    own_taints,
)
from controller.scheduling.inventory.pod_resources import pod_requests
from controller.scheduling.inventory.topology_spread import SpreadCounts, is_hard
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.api.core import Node, NodeSelector, Pod, Taint, Toleration
from hami_dra.api.selectors import node_selector_matches, tolerates

CODES: Final = (
    "",
    names.NODE_UNSCHEDULABLE,
    names.NODE_NOT_READY,
    names.NODE_TAINTED,
    names.NODE_AFFINITY,
    names.NODE_RESOURCES,
    names.NODE_TOPOLOGY_SPREAD,
)
_NUMBER: Final = {code: number for number, code in enumerate(CODES)}
_KEPT: Final = 128
ABSENT: Final = 255
"""The code of rows without a node."""
_CODE_OF_TAINT: Final = {
    UNSCHEDULABLE_TAINT.key: names.NODE_UNSCHEDULABLE,
    NOT_READY_TAINT.key: names.NODE_NOT_READY,
    UNREACHABLE_TAINT.key: names.NODE_NOT_READY,
}


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Per node row, shape (size,)."""

    mask: Bools
    """The pod fits; rows without a node are False."""
    codes: Codes
    """Number of the first failing reason (`CODES`), 0 where it fits, 255 where there is no node."""


_Wanted = list[tuple[str, int]]
"""(resource, amount) of what a pod asks for, above 0."""


class PlainFit:
    """One shape of pod, as it stood when its readers read the nodes and their loads. Itself the key
    of that shape.
    """

    def __init__(self, nodes: NodeColumns) -> None:
        self.readers = LogReader(nodes.changes), LogReader(nodes.loads)
        self.codes: Codes = np.zeros(0, dtype=np.uint8)
        """See `NodeFit`. Callers must not change it."""


class NodeFits:
    """`delegated`: extended resources that a DeviceClass serves. Nodes that do not offer them get
    them through claims.
    """

    def __init__(self, nodes: NodeColumns, spread: SpreadCounts, delegated: Callable[[str], bool]) -> None:
        self._nodes = nodes
        self._spread = spread
        self._delegated = delegated
        self._columns: LruCache[NodeColumn] = LruCache(_KEPT)
        self._verdicts: LruCache[PlainFit] = LruCache(_KEPT)

    def of(self, pod: Pod, own: Placed | None = None) -> NodeFit:
        """Return the fit of the pod. `own`: the usage that the inventory counts for this pod; it
        does not count against it.
        """
        wanted = _wanted(pod)
        codes = self._kept(pod, wanted).codes.copy()
        if own is not None and (row := self._nodes.index_of(own.node)) >= 0:
            rows = np.array([row], dtype=np.intp)
            codes[row] = self._judged(pod, wanted, rows, own=own)[0]
        if _is_spread(pod):
            uneven = self._spread.violates(pod, own, self._admitted(pod), lambda: self._untainted(pod))
            codes[(codes == 0) & uneven] = _NUMBER[names.NODE_TOPOLOGY_SPREAD]
        return NodeFit(mask=codes == 0, codes=codes)

    def plain(self, pod: Pod) -> PlainFit | None:
        """Return the cached fit of a pod that counts nowhere yet; None if its topology spread needs
        all nodes and pods.
        """
        return None if _is_spread(pod) else self._kept(pod, _wanted(pod))

    def _kept(self, pod: Pod, wanted: _Wanted) -> PlainFit:
        """Return the cached fit without spread, for a pod that counts nowhere yet."""
        nodes, spec = self._nodes, pod.spec
        delegated = tuple([resource for resource, _ in wanted if self._delegated(resource)])
        selector = tuple(sorted(spec.node_selector.items())) if spec.node_selector else ()
        kept = self._verdicts.get(
            (spec.tolerations, selector, _required(pod), tuple(wanted), delegated), lambda: PlainFit(nodes)
        )
        changes, loads = kept.readers
        if not (changes.is_current and loads.is_current):
            changed, loaded = changes.entries(), loads.entries()
            if changed is None or loaded is None or len(kept.codes) != nodes.size:
                kept.codes = self._judged(pod, wanted, np.arange(nodes.size))
            else:
                rows = np.array([*{*changed, *loaded}], dtype=np.intp)
                kept.codes[rows] = self._judged(pod, wanted, rows)
            changes.done()
            loads.done()
        return kept

    def _judged(self, pod: Pod, wanted: _Wanted, rows: Positions, *, own: Placed | None = None) -> Codes:
        """Return the first failing reason of each row. `own`: subtracted from the usage."""
        codes: Codes = self._taint_codes(pod)[rows].astype(np.uint8)
        if pod.spec.node_selector or pod.spec.affinity is not None:
            codes[(codes == 0) & ~self._admitted(pod)[rows]] = _NUMBER[names.NODE_AFFINITY]
        offers, used = self._nodes.loads_of([resource for resource, _ in wanted], rows)
        if own is not None:
            # of what no node offers nothing is counted as used, the pod's own part neither
            used = np.maximum(used - np.array([[own.requests[resource]] for resource, _ in wanted], dtype=np.int64), 0)
        lacking = offers - used < np.array([[amount] for _, amount in wanted], dtype=np.int64)
        elsewhere = [number for number, (resource, _) in enumerate(wanted) if self._delegated(resource)]
        if elsewhere:
            lacking[elsewhere] &= offers[elsewhere] > 0
        codes[(codes == 0) & np.logical_or.reduce(lacking)] = _NUMBER[names.NODE_RESOURCES]
        return codes

    def is_even(self, pod: Pod, row: int, own: Placed | None, unsure: Collection[Placed]) -> bool:
        """Return whether the pod's hard spread constraints hold, regardless of which `unsure` pods
        are bound before it.
        """
        if not unsure or not _is_spread(pod):
            return True
        uneven = self._spread.violates(pod, own, self._admitted(pod), lambda: self._untainted(pod), unsure)
        return not uneven[row]

    def left(self, resource: str, own: Placed | None = None) -> Ints:
        """Return the amount of a resource left on the nodes, without the usage of `own`. Shape
        (nodes.size,).
        """
        nodes = self._nodes
        left = nodes.offers(resource) - nodes.used(resource)
        own_row = nodes.index_of(own.node) if own is not None else -1
        if own is not None and own_row >= 0:
            left[own_row] += own.requests[resource]
        return left

    def _taint_codes(self, pod: Pod) -> Ints:
        tolerations = pod.spec.tolerations
        column = self._columns.get(
            ("taints", tolerations),
            lambda: NodeColumn(self._nodes, lambda node: _NUMBER[taint_code(tolerations, node)], ABSENT),
        )
        return column.current()

    def _untainted(self, pod: Pod) -> Bools:
        """Return the nodes whose own taints the pod tolerates (nodeTaintsPolicy Honor)."""
        tolerations = pod.spec.tolerations
        column = self._columns.get(
            ("own taints", tolerations),
            lambda: NodeColumn(self._nodes, lambda node: _first_untolerated(tolerations, own_taints(node)) is None, 0),
        )
        return column.current().astype(np.bool_)

    def _admitted(self, pod: Pod) -> Bools:
        """Return the nodes that selector and required affinity of the pod admit. Callers must not
        change it.
        """
        spec = pod.spec
        required = _required(pod)
        if required is not None and (pinned := pinned_names(required)) is not None:
            return self._admitted_of(pod, pinned)
        column = self._columns.get(
            ("admits", tuple(sorted(spec.node_selector.items())), required),
            lambda: NodeColumn(self._nodes, lambda node: admits(pod, node), 0),
        )
        return column.current().astype(np.bool_)

    def _admitted_of(self, pod: Pod, pinned: frozenset[str]) -> Bools:
        """Return the admitted nodes by name: each pod of a DaemonSet has its own affinity, so only
        named nodes are tested.
        """
        mask = np.zeros(self._nodes.size, dtype=np.bool_)
        for name in pinned:
            row = self._nodes.index_of(name)
            if row >= 0:
                mask[row] = admits(pod, self._nodes.node(row))
        return mask


def _wanted(pod: Pod) -> _Wanted:
    return [(resource, amount) for resource, amount in pod_requests(pod).items() if amount > 0]


def taint_code(tolerations: tuple[Toleration, ...], node: Node) -> str:
    """Return the reason code of the first taint that is not tolerated, or an empty text."""
    taint = _first_untolerated(tolerations, effective_taints(node))
    return "" if taint is None else _CODE_OF_TAINT.get(taint.key, names.NODE_TAINTED)


def admits(pod: Pod, node: Node) -> bool:
    """Return whether nodeSelector and required node affinity of the pod allow the node."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    required = _required(pod)
    return required is None or node_selector_matches(required, node.metadata.name, labels)


def pinned_names(selector: NodeSelector) -> frozenset[str] | None:
    """Return the only names that the selector can match, or None if labels alone decide."""
    found: set[str] = set()
    for term in selector.node_selector_terms:
        fixed = [each.values for each in term.match_fields if each.key == "metadata.name" and each.operator == "In"]
        if not fixed:
            return None
        found.update(fixed[0])
    return frozenset(found)


def _first_untolerated(tolerations: tuple[Toleration, ...], taints: tuple[Taint, ...]) -> Taint | None:
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def _is_spread(pod: Pod) -> bool:
    return any(is_hard(each) for each in pod.spec.topology_spread_constraints)


def _required(pod: Pod) -> NodeSelector | None:
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required_during_scheduling_ignored_during_execution
