"""Hard topologySpreadConstraints, computed like kube-scheduler's PodTopologySpread plugin
(filtering.go, common.go).

Fed with every pod that counts on a node. For each selector in use, the matching pods per node are a
column that is updated with each pod that comes or goes; a decision only adds them up per domain.
Zones of the nodes, and matching pods on them:

    zones  a a b    pods  2 1 1    per domain  a 3, b 1; fewest 1; maxSkew 1
    a pod in a: 3 + 1 - 1 = 3 > 1, refused; in b: 1 + 1 - 1 = 1, allowed
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

import numpy as np

from controller.scheduling.inventory.changes import LruCache
from controller.scheduling.inventory.node_column import NodeColumn
from controller.scheduling.inventory.nodes import NodeColumns, Placed
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Node, Pod, TopologySpreadConstraint
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.api.selectors import label_selector_matches

_SELECTORS_KEPT: Final = 64
_KEYS_KEPT: Final = 16
_NO_DOMAIN: Final = -1


def is_hard(constraint: TopologySpreadConstraint) -> bool:
    return constraint.when_unsatisfiable == "DoNotSchedule"


class SpreadCounts:
    """The pods that count on nodes, and per selector in use how many of them match on each node."""

    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._placed: defaultdict[str, dict[str, Placed]] = defaultdict(dict)
        """Namespace → pod uid → where; without pods that are being deleted."""
        self._counts: LruCache[_Counts] = LruCache(_SELECTORS_KEPT)
        self._domains: LruCache[_Domains] = LruCache(_KEYS_KEPT)

    def add(self, uid: str, placed: Placed) -> None:
        if placed.pod.metadata.deletion_timestamp is None:
            self._placed[placed.pod.metadata.namespace][uid] = placed
            self._count(placed, +1)

    def remove(self, uid: str, placed: Placed) -> None:
        """Remove a pod. `placed`: equal to the one added."""
        namespace = placed.pod.metadata.namespace
        there = self._placed.get(namespace)
        if there is None or there.pop(uid, None) is None:
            return
        if not there:
            del self._placed[namespace]
        self._count(placed, -1)

    def violates(
        self,
        pod: Pod,
        own: Placed | None,
        admitted: Bools,
        untainted: Callable[[], Bools],
        unsure: Collection[Placed] = (),
    ) -> Bools:
        """Return per node row whether placing `pod` there breaks one of its hard constraints. Shape
        (size,).

        `own`: the pod's own placement, which is left out. `admitted`: nodes that its selector and
        affinity admit; `untainted`: those whose own taints it tolerates. `unsure`: pods that count,
        but may come after this one: they are counted in its own domain and left out in others,
        which is the worst case.
        """
        hard = [each for each in pod.spec.topology_spread_constraints if is_hard(each)]
        keys = [each.topology_key for each in hard]
        domains = [self._domains.get(key, partial(_Domains, self._nodes, key)).current() for key in keys]
        keyed = self._nodes.present[: self._nodes.size].copy()
        for domain in domains:
            keyed &= domain != _NO_DOMAIN
        bad = np.zeros(self._nodes.size, dtype=np.bool_)
        for constraint, domain in zip(hard, domains, strict=True):
            eligible = keyed.copy()
            if constraint.node_affinity_policy in {None, "Honor"}:
                eligible &= admitted
            if constraint.node_taints_policy == "Honor":
                eligible &= untainted()
            bad |= self._breaks(pod, own, constraint, domain, eligible, unsure=unsure)
        return bad

    def _breaks(
        self,
        pod: Pod,
        own: Placed | None,
        constraint: TopologySpreadConstraint,
        domain: Ints,
        eligible: Bools,
        *,
        unsure: Collection[Placed],
    ) -> Bools:
        """Return whether matching pods of the domain + the pod itself - the fewest of any domain >
        maxSkew.
        """
        counts = self._counts_of(pod, constraint)
        per_node = counts.column(self._nodes)
        if own is not None and counts.counted(own) and (row := self._nodes.index_of(own.node)) >= 0:
            per_node = per_node.copy()
            per_node[row] -= 1
        length = int(domain.max(initial=0)) + 1
        here = domain[eligible]
        pods = np.bincount(here, weights=per_node[eligible], minlength=length).astype(np.int64)
        exists = np.bincount(here, minlength=length) > 0
        enough = int(exists.sum()) >= (1 if constraint.min_domains is None else constraint.min_domains)
        sure = pods - self._per_domain((each for each in unsure if each is not own), counts, domain, eligible, length)
        fewest = int(sure[exists].min()) if enough and exists.any() else 0
        over = pods + int(counts.matches(pod)) - fewest > constraint.max_skew
        missing = domain == _NO_DOMAIN
        bad: Bools = missing | over[np.where(missing, 0, domain)]
        return bad

    def _per_domain(
        self, pods: Iterable[Placed], counts: "_Counts", domain: Ints, eligible: Bools, length: int
    ) -> Ints:
        """Return the number of these pods per number of a domain. Shape (length,)."""
        rows = np.array([self._nodes.index_of(each.node) for each in pods if counts.counted(each)], dtype=np.int64)
        rows = rows[rows >= 0]
        return np.bincount(domain[rows[eligible[rows]]], minlength=length)

    def _counts_of(self, pod: Pod, constraint: TopologySpreadConstraint) -> "_Counts":
        namespace = pod.metadata.namespace
        selector = _with_label_keys(pod, constraint)
        parts = None
        if selector is not None:
            parts = tuple(sorted(selector.match_labels.items())), selector.match_expressions
        return self._counts.get(
            (namespace, parts), lambda: _Counts(namespace, selector, self._placed.get(namespace, {}).values())
        )

    def _count(self, placed: Placed, sign: int) -> None:
        for counts in self._counts.values():
            counts.count(placed, sign, self._nodes)


class _Counts:
    """Pods of one namespace that one selector matches. Stored by node name, because names outlive
    rows, and as a column.
    """

    def __init__(self, namespace: str, selector: LabelSelector | None, placed: Iterable[Placed]) -> None:
        self._namespace = namespace
        self._selector = selector
        self._by_node: dict[str, int] = {}
        self._arrivals = -1
        self._column: Ints = np.zeros(0, dtype=np.int64)
        # countPodsMatchSelector finds no pod by an empty selector, though Matches finds every
        self._counts_none = selector is None or not (selector.match_labels or selector.match_expressions)
        for each in placed:
            if self.counted(each):
                self._by_node[each.node] = self._by_node.get(each.node, 0) + 1

    def matches(self, pod: Pod) -> bool:
        return label_selector_matches(self._selector, pod.metadata.labels)

    def counted(self, placed: Placed) -> bool:
        meta = placed.pod.metadata
        return (
            not self._counts_none
            and meta.namespace == self._namespace
            and meta.deletion_timestamp is None
            and self.matches(placed.pod)
        )

    def count(self, placed: Placed, sign: int, nodes: NodeColumns) -> None:
        if not self.counted(placed):
            return
        count = self._by_node.pop(placed.node, 0) + sign
        if count:
            self._by_node[placed.node] = count
        row = nodes.index_of(placed.node)
        if row >= 0 and self._arrivals == nodes.arrivals:
            self._column[row] = count

    def column(self, nodes: NodeColumns) -> Ints:
        """Shape (size,). Not to be changed by the caller."""
        if self._arrivals != nodes.arrivals:
            self._column = np.zeros(nodes.size, dtype=np.int64)
            for name, count in self._by_node.items():
                row = nodes.index_of(name)
                if row >= 0:
                    self._column[row] = count
            self._arrivals = nodes.arrivals
        return self._column


class _Domains:
    """Per node row the number of its value of one label, -1 if it has none."""

    def __init__(self, nodes: NodeColumns, key: str) -> None:
        self._nodes = nodes
        self._key = key
        self._numbers: dict[str, int] = {}
        self._column = NodeColumn(nodes, self._number, _NO_DOMAIN)

    def current(self) -> Ints:
        if len(self._numbers) > 2 * self._nodes.size + 64:
            # values of nodes that are long gone
            self._numbers = {}
            self._column = NodeColumn(self._nodes, self._number, _NO_DOMAIN)
        return self._column.current()

    def _number(self, node: Node) -> int:
        value = node.metadata.labels.get(self._key)
        return _NO_DOMAIN if value is None else self._numbers.setdefault(value, len(self._numbers))


def _with_label_keys(pod: Pod, constraint: TopologySpreadConstraint) -> LabelSelector | None:
    """Return the selector with matchLabelKeys: the pod's own values of these labels are required
    too.
    """
    selector = constraint.label_selector
    labels = pod.metadata.labels
    added = tuple(
        LabelSelectorRequirement(key=key, operator="In", values=(labels[key],))
        for key in constraint.match_label_keys
        if key in labels
    )
    if selector is None or not added:
        return selector
    return LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions + added)
