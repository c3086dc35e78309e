"""Hard topologySpreadConstraints, counted as kube-scheduler's PodTopologySpread plugin counts them (filtering.go, common.go).

Fed with every pod that counts on a node. For each selector that pods spread by, the matching pods per node are kept as a
column and changed with each pod that comes or goes; a decision only adds them up per domain.
"""

from collections import OrderedDict, defaultdict
from typing import Final

import numpy as np

from controller.inventory.columns import Bools
from controller.inventory.nodes import NodeColumns, Placed
from controller.inventory.selectors import label_selector_matches
from hami_dra.api.core import Pod, TopologySpreadConstraint
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.vendors.protocol import Ints

_KEPT: Final = 64
_NO_DOMAIN: Final = -1


class _Counts:
    """Pods of one namespace that one selector matches, by node name: names outlive rows."""

    def __init__(self, namespace: str, selector: LabelSelector | None) -> None:
        self.namespace = namespace
        self.selector = selector
        self.by_node: defaultdict[str, int] = defaultdict(int)

    def matches(self, pod: Pod) -> bool:
        return pod.metadata.namespace == self.namespace and label_selector_matches(self.selector, pod.metadata.labels)

    def column(self, nodes: NodeColumns) -> Ints:
        counts = np.zeros(nodes.size, dtype=np.int64)
        for name, count in self.by_node.items():
            row = nodes.index_of(name)
            if row >= 0:
                counts[row] = count
        return counts


class SpreadCounts:
    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._placed: dict[str, Placed] = {}
        self._kept: OrderedDict[tuple[str, str], _Counts] = OrderedDict()
        self._domains: dict[str, tuple[int, Ints]] = {}

    def add(self, uid: str, placed: Placed) -> None:
        if placed.pod.metadata.deletion_timestamp is None:
            self._placed[uid] = placed
            self._count(placed, +1)

    def remove(self, uid: str) -> None:
        placed = self._placed.pop(uid, None)
        if placed is not None:
            self._count(placed, -1)

    def violates(self, pod: Pod, admitted: Bools, tolerated: Bools) -> Bools:
        """Per node row, whether placing `pod` there breaks one of its hard constraints. Shape (size,).

        `admitted`: nodes that selector and affinity admit; `tolerated`: nodes whose taints the pod tolerates.
        """
        hard = [each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable == "DoNotSchedule"]
        domains = [self._domain_column(each.topology_key) for each in hard]
        everywhere = self._nodes.present[: self._nodes.size].copy()
        for column in domains:
            everywhere &= column != _NO_DOMAIN
        bad = np.zeros(self._nodes.size, dtype=np.bool_)
        for constraint, domain in zip(hard, domains, strict=True):
            eligible = everywhere.copy()
            if (constraint.node_affinity_policy or "Honor") == "Honor":
                eligible &= admitted
            if (constraint.node_taints_policy or "Ignore") == "Honor":
                eligible &= tolerated
            bad |= self._one(pod, constraint, domain, eligible)
        return bad

    def _one(self, pod: Pod, constraint: TopologySpreadConstraint, domain: Ints, eligible: Bools) -> Bools:
        counts = self._counts(pod, constraint)
        here = domain[eligible]
        if not here.size:
            return np.ones(self._nodes.size, dtype=np.bool_)
        length = int(domain.max()) + 1
        pods = np.bincount(here, weights=counts.column(self._nodes)[eligible], minlength=length).astype(np.int64)
        exists = np.bincount(here, minlength=length) > 0
        fewest = int(pods[exists].min())
        if constraint.min_domains is not None and int(exists.sum()) < constraint.min_domains:
            fewest = 0
        more = pods + int(counts.matches(pod)) - fewest > constraint.max_skew
        missing = domain == _NO_DOMAIN
        bad: Bools = missing | more[np.where(missing, 0, domain)]
        return bad

    def _counts(self, pod: Pod, constraint: TopologySpreadConstraint) -> _Counts:
        selector = _with_label_keys(pod, constraint)
        key = (pod.metadata.namespace, repr(selector))
        counts = self._kept.get(key)
        if counts is None:
            counts = self._kept[key] = _Counts(pod.metadata.namespace, selector)
            for placed in self._placed.values():
                if counts.matches(placed.pod):
                    counts.by_node[placed.node] += 1
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return counts

    def _count(self, placed: Placed, sign: int) -> None:
        for counts in self._kept.values():
            if counts.matches(placed.pod):
                counts.by_node[placed.node] += sign

    def _domain_column(self, key: str) -> Ints:
        """Per node row the number of its value of a label, -1 where it has none. Made anew when a node changes."""
        version, column = self._domains.get(key, (-1, np.zeros(0, dtype=np.int64)))
        if version != self._nodes.changes.version:
            numbers: dict[str, int] = {}
            column = np.full(self._nodes.size, _NO_DOMAIN, dtype=np.int64)
            for row in range(self._nodes.size):
                node = self._nodes.nodes[row]
                value = node.metadata.labels.get(key) if node is not None else None
                if value is not None:
                    column[row] = numbers.setdefault(value, len(numbers))
            self._domains[key] = (self._nodes.changes.version, column)
        return column


def _with_label_keys(pod: Pod, constraint: TopologySpreadConstraint) -> LabelSelector | None:
    """matchLabelKeys: the pod's own values of these labels are required too."""
    selector = constraint.label_selector
    own = [key for key in constraint.match_label_keys if key in pod.metadata.labels]
    if selector is None or not own:
        return selector
    added = tuple(LabelSelectorRequirement(key=key, operator="In", values=(pod.metadata.labels[key],)) for key in own)
    return LabelSelector(match_labels=selector.match_labels, match_expressions=selector.match_expressions + added)
