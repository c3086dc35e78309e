"""Pods that count on nodes, grouped by namespace and labels, and counts of those that selectors
match.

PodTopologySpread and InterPodAffinity ask how many pods of some namespaces match a selector on each
node. Pods of one workload have the same labels, so a selector is evaluated once per group, when the
group or the count comes up; after that a pod that comes or goes changes only the counts that its
group is in:

    group  default, app=web   -> pods w1 (n1), w2 (n2)
    count  "app=web in default" watches that group: n1 1, n2 1
    w3 starts on n2           -> n1 1, n2 2; no selector is read
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from controller.scheduling.incremental.changes import Shared
from controller.scheduling.node_filter.label_index import SelectorIndex, required_labels
from controller.scheduling.node_filter.node_counts import NodeCounts
from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from hami_dra.api.core import Pod
from hami_dra.api.meta import LabelSelector
from hami_dra.api.selectors import label_selector_matches

_KEYS_INDEXED: Final = 64
_RECENT_KEPT: Final = 256
_PORTION: Final = 2_000
"""Requirements that are held against labels between two reports to the meter."""


@dataclass(frozen=True, slots=True)
class PodSelector:
    """The pods of some namespaces that a label selector matches."""

    namespaces: frozenset[str] | None
    """None: all."""
    labels: LabelSelector | None
    """None matches nothing."""

    @property
    def size(self) -> int:
        """Number of requirements."""
        return len(self.labels.match_labels) + len(self.labels.match_expressions) if self.labels is not None else 0

    def matches(self, namespace: str, labels: dict[str, str]) -> bool:
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return label_selector_matches(self.labels, labels)


class Meter(Protocol):
    """The time of a decision."""

    @property
    def account(self) -> str:
        """The namespace that pays."""

    def spend(self) -> None:
        """Report the time since the last report. Raises an exception where the decision is to go on
        later.
        """


class PodGroup:
    """The pods of one namespace with equal labels. `leaving`: they are being deleted."""

    __slots__ = ("counted_by", "labels", "leaving", "namespace", "pods")

    def __init__(self, pod: Pod) -> None:
        self.namespace = pod.metadata.namespace
        self.labels = pod.metadata.labels
        self.leaving = pod.metadata.deletion_timestamp is not None
        self.pods: dict[str, Placed] = {}
        self.counted_by: dict[MatchingPods, None] = {}


class MatchingPods(NodeCounts):
    """The pods per node that all of `selectors` match; `leaving`: also those being deleted."""

    def __init__(self, nodes: NodeColumns, selectors: Sequence[PodSelector], *, leaving: bool) -> None:
        super().__init__(nodes)
        self.selectors = selectors
        self.leaving = leaving
        self.groups: dict[PodGroup, None] = {}
        self.pending: list[PodGroup] = []
        """Groups that are still to be held against the selectors."""
        self.users = 0

    def matches(self, namespace: str, labels: dict[str, str]) -> bool:
        return bool(self.selectors) and all(each.matches(namespace, labels) for each in self.selectors)

    def counts(self, pod: Pod) -> bool:
        """Return whether the pod counts where it is placed."""
        meta = pod.metadata
        return (self.leaving or meta.deletion_timestamp is None) and self.matches(meta.namespace, meta.labels)

    @property
    def first_selector(self) -> LabelSelector | None:
        """A selector that all pods match that count; None: none do."""
        return self.selectors[0].labels if self.selectors else None

    def share_of(self, placed: Placed) -> int:
        """Return what this pod contributes to its node's count."""
        return int(self.counts(placed.pod))

    def pods(self) -> Iterator[Placed]:
        for group in self.groups:
            yield from group.pods.values()


class PodGroups:
    """All pods that count on nodes, by group, and the counts in use (`acquire`, `release`)."""

    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        self._groups: dict[str, dict[bytes, PodGroup]] = {}
        """By namespace and content."""
        self._counts: dict[Hashable, MatchingPods] = {}
        self._by_value: dict[tuple[str, str], dict[str, dict[PodGroup, None]]] = {}
        """(namespace, key of a label) → its value → groups; for keys that selectors asked for."""
        self._index: SelectorIndex[MatchingPods] = SelectorIndex()
        self._recent: Shared[Hashable] = Shared(_RECENT_KEPT, dropped=self.release)
        """Keys of counts that a decision began: it may have to go on later."""
        self.meter: Callable[[], Meter | None] = lambda: None
        """Return the meter of the decision that is being made; None: it may take its time."""

    def add(self, uid: str, placed: Placed) -> None:
        pod = placed.pod
        groups = self._groups.setdefault(pod.metadata.namespace, {})
        content = _content(pod)
        group = groups.get(content)
        if group is None:
            group = groups[content] = PodGroup(pod)
            self._watch(group)
        group.pods[uid] = placed
        for counts in group.counted_by:
            counts.add(placed.node, +1)

    def remove(self, uid: str, placed: Placed) -> None:
        pod = placed.pod
        namespace = pod.metadata.namespace
        group = self._groups[namespace][_content(pod)]
        del group.pods[uid]
        for counts in group.counted_by:
            counts.add(placed.node, -1)
        if not group.pods:
            self._drop(group, _content(pod))

    def acquire(self, key: Hashable, selectors: Sequence[PodSelector], *, leaving: bool) -> MatchingPods:
        """Return the count for these selectors, kept up to date until it is released as often as it
        was acquired. `key`: equal for equal selectors.

        Raises what the meter raises; the next call then continues.
        """
        counts = self._counts.get(key)
        meter = self.meter() if counts is None or counts.pending else None
        if counts is None:
            counts = self._counts[key] = MatchingPods(self._nodes, selectors, leaving=leaving)
            counts.pending = [*self._candidates(selectors)]
            if (selector := counts.first_selector) is not None:
                self._index.add(counts, selector)
            if meter is not None:
                counts.users += 1
                self._recent.get(key, meter.account, lambda: key)
        self._catch_up(counts, meter)
        counts.users += 1
        return counts

    def acquire_all(
        self, wanted: Iterable[tuple[Hashable, Sequence[PodSelector]]], *, leaving: bool
    ) -> list[MatchingPods]:
        """Return the counts of several selectors: `acquire`, all or none."""
        found: dict[Hashable, MatchingPods] = {}
        acquired: list[Hashable] = []
        try:
            for key, selectors in wanted:
                found[key] = self.acquire(key, selectors, leaving=leaving)
                acquired.append(key)
        except BaseException:
            for key in acquired:
                self.release(key)
            raise
        return [found[key] for key in acquired]

    def _catch_up(self, counts: MatchingPods, meter: "Meter | None") -> None:
        """Hold the selectors against the groups that are still to come, in portions."""
        pending = counts.pending
        portion = max(1, _PORTION // (1 + sum([each.size for each in counts.selectors])))
        while pending:
            for group in pending[-portion:]:
                is_meant = group.pods and (counts.leaving or not group.leaving)
                if is_meant and counts.matches(group.namespace, group.labels):
                    self._count(group, counts)
            del pending[-portion:]
            if meter is not None:
                meter.spend()

    def release(self, key: Hashable) -> None:
        counts = self._counts[key]
        counts.users -= 1
        if not counts.users:
            del self._counts[key]
            for group in counts.groups:
                del group.counted_by[counts]
            if (selector := counts.first_selector) is not None:
                self._index.remove(counts, selector)

    def _watch(self, group: PodGroup) -> None:
        """Let the counts in use see a new group."""
        for counts in self._index.candidates(group.labels):
            if (counts.leaving or not group.leaving) and counts.matches(group.namespace, group.labels):
                self._count(group, counts)
        for (namespace, key), values in self._by_value.items():
            if namespace == group.namespace and (value := group.labels.get(key)) is not None:
                values.setdefault(value, {})[group] = None

    def _drop(self, group: PodGroup, content: bytes) -> None:
        groups = self._groups[group.namespace]
        del groups[content]
        if not groups:
            del self._groups[group.namespace]
        for counts in group.counted_by:
            del counts.groups[group]
        for (namespace, key), values in self._by_value.items():
            if namespace == group.namespace and (value := group.labels.get(key)) is not None:
                del values[value][group]
                if not values[value]:
                    del values[value]

    def _count(self, group: PodGroup, counts: MatchingPods) -> None:
        group.counted_by[counts] = None
        counts.groups[group] = None
        for placed in group.pods.values():
            counts.add(placed.node, +1)

    def _candidates(self, selectors: Sequence[PodSelector]) -> Iterable[PodGroup]:
        """Yield all groups that may match, and others: by namespace, and by one label whose value
        the selector gives.
        """
        if not selectors:
            return
        namespaces = selectors[0].namespaces
        labels = selectors[0].labels
        if labels is None:
            return
        wanted = required_labels(labels)
        for namespace in self._groups if namespaces is None else namespaces & self._groups.keys():
            if wanted is None:
                yield from self._groups[namespace].values()
            else:
                for key, value in wanted:
                    yield from self._values_of(namespace, key).get(value, ())

    def _values_of(self, namespace: str, key: str) -> dict[str, dict[PodGroup, None]]:
        found = self._by_value.get((namespace, key))
        if found is None:
            if len(self._by_value) >= _KEYS_INDEXED:
                del self._by_value[next(iter(self._by_value))]
            found = self._by_value[namespace, key] = {}
            for group in self._groups[namespace].values():
                if (value := group.labels.get(key)) is not None:
                    found.setdefault(value, {})[group] = None
        return found


def selector_key(selector: LabelSelector | None) -> Hashable:
    """Return a value that is equal for equal selectors."""
    if selector is None:
        return None
    return tuple(sorted(selector.match_labels.items())), selector.match_expressions


def selector_in_words(selector: LabelSelector | None) -> str:
    """Return a selector as kubectl writes it.

    >>> selector_in_words(LabelSelector(match_labels={"app": "web"}))
    'app=web'
    """
    if selector is None:
        return "no pod"
    parts = [f"{key}={value}" for key, value in selector.match_labels.items()]
    for each in selector.match_expressions:
        values = ", ".join(each.values)
        match each.operator:
            case "In":
                parts.append(f"{each.key}={values}" if len(each.values) == 1 else f"{each.key} in ({values})")
            case "NotIn":
                parts.append(f"{each.key} notin ({values})")
            case "DoesNotExist":
                parts.append(f"!{each.key}")
            case _:
                parts.append(each.key)
    return ",".join(parts) or "all pods"


def _content(pod: Pod) -> bytes:
    """Return a value that is equal for pods of one group, within their namespace."""
    content = msgspec.json.encode(pod.metadata.labels, order="deterministic")
    return content if pod.metadata.deletion_timestamp is None else content + b"-"
