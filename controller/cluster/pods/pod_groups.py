"""Pods that count on nodes, grouped by namespace and labels, and counts of those that selectors
match.

PodTopologySpread and InterPodAffinity ask how many pods of some namespaces match a selector on each
node. Pods of one workload have the same labels, so a selector is evaluated once per group, when the
count is read; after that a pod that comes or goes changes only the counts that its group is in:

    group  default, app=web   -> pods w1 (n1), w2 (n2)
    count  "app=web in default" watches that group: n1 1, n2 1
    w3 starts on n2           -> n1 1, n2 2; no selector is read

A new group only waits for the counts that may mean it: whose pod needs a count pays for it.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct, field

from controller.cluster.incremental.changes import Shared
from controller.cluster.nodes.label_index import SelectorIndex, required_labels
from controller.cluster.nodes.node_counts import NodeCounts
from controller.cluster.nodes.nodes import NodeColumns, Placed
from hami_dra.api.core import Namespace, Pod
from hami_dra.api.meta import LabelSelector
from hami_dra.api.selectors import ParsedSelector

_KEYS_INDEXED: Final = 64
_RECENT_KEPT: Final = 256
_PORTION: Final = 2_000
"""Requirements that are held against labels, and pods that are counted, between two reports to the meter."""
_MOST_SCOPES: Final = 32
"""Namespaces whose groups are looked up one by one; of more, all groups are."""
_SPARE_PENDING: Final = 1_024


class PodSelector(Struct, frozen=True):
    """The pods of some namespaces that a label selector matches."""

    namespaces: frozenset[str] | None
    """None: all."""
    labels: ParsedSelector | None
    """None matches nothing."""
    others: ParsedSelector | None = None
    """Selects further namespaces by their labels."""
    by_name: Mapping[str, Namespace] = field(default_factory=dict)
    """The namespaces that there are, live, for `others`."""

    @property
    def size(self) -> int:
        """Number of requirements."""
        return sum([each.size for each in (self.labels, self.others) if each is not None])

    @property
    def scopes(self) -> Collection[str | None]:
        """The namespaces in which it may match pods; `(None,)`: any."""
        is_bounded = self.namespaces is not None and self.others is None and len(self.namespaces) <= _MOST_SCOPES
        return self.namespaces if is_bounded and self.namespaces is not None else _EVERYWHERE

    def matches(self, namespace: str, labels: dict[str, str]) -> bool:
        return self.labels is not None and self.labels.matches(labels) and self._includes(namespace)

    def _includes(self, namespace: str) -> bool:
        if self.namespaces is None or namespace in self.namespaces:
            return True
        if self.others is None or (found := self.by_name.get(namespace)) is None:
            return False
        return self.others.matches(found.metadata.labels)


_EVERYWHERE: Final = (None,)
_NO_GROUPS: Final[Mapping[bytes, "PodGroup"]] = {}


class Meter(Protocol):
    """The time of a decision."""

    @property
    def account(self) -> str:
        """The namespace that pays."""

    def spend(self, owner: str = "") -> None:
        """Report the time since the last report, caused by what stands in `owner`, a namespace;
        empty: the account. Raises an exception where the decision is to go on later.
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
        self.most_pending = _SPARE_PENDING
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
        first = self.selectors[0].labels if self.selectors else None
        return first.source if first is not None else None

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
        self._by_value: Shared[_Values] = Shared(_KEYS_INDEXED, dropped=self._values_dropped)
        """(namespace or None, key of a label) → its value → groups; for keys that selectors asked for."""
        self._values_in: dict[str | None, dict[str, _Values]] = {}
        """The same by namespace, then by key."""
        self._index: SelectorIndex[MatchingPods] = SelectorIndex()
        self._recent: Shared[Hashable] = Shared(_RECENT_KEPT, dropped=self.release)
        """Keys of counts that a decision began: it may have to go on later."""
        self._unreported = 0
        """Work since the last report to a meter, of several counts if each takes little."""
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
        """Return the count for these selectors, kept until it is released as often as it was
        acquired. `catch_up` brings it up to date again. `key`: equal for equal selectors.

        Raises what the meter raises; the next call then continues.
        """
        counts = self._counts.get(key)
        if counts is None:
            meter = self.meter()
            counts = MatchingPods(self._nodes, selectors, leaving=leaving)
            counts.pending = self._candidates(selectors, meter)
            self._counts[key] = counts
            if (selector := counts.first_selector) is not None:
                self._index.add(counts, selector)
            if meter is not None:
                counts.users += 1
                self._recent.get(key, meter.account, lambda: key)
        self.catch_up((counts,))
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

    def catch_up(self, several: Iterable[MatchingPods]) -> None:
        """Hold the selectors of some counts against the groups that are still to come, in portions.

        Raises what the meter raises; the next call then continues.
        """
        behind = [counts for counts in several if counts.pending]
        meter = self.meter() if behind else None
        for counts in behind:
            cost = 1 + sum([each.size for each in counts.selectors])
            while counts.pending:
                group = counts.pending.pop()
                self._unreported += cost
                is_meant = group.pods and (counts.leaving or not group.leaving)
                if is_meant and counts.matches(group.namespace, group.labels):
                    self._count(group, counts)
                    self._unreported += len(group.pods)
                if self._unreported >= _PORTION and meter is not None:
                    self._unreported = 0
                    meter.spend()

    def forget_recent(self) -> None:
        """Note that a namespace changed: what a decision began may mean other pods now."""
        self._recent.clear()

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
        """Let a new group wait for the counts in use that may mean it."""
        for counts in self._index.candidates(group.labels):
            counts.pending.append(group)
            if len(counts.pending) > counts.most_pending:
                counts.pending = [each for each in counts.pending if each.pods or each is group]
                counts.most_pending = 2 * len(counts.pending) + _SPARE_PENDING
        for values in self._values_about(group):
            values.add(group)

    def _drop(self, group: PodGroup, content: bytes) -> None:
        groups = self._groups[group.namespace]
        del groups[content]
        if not groups:
            del self._groups[group.namespace]
        for counts in group.counted_by:
            del counts.groups[group]
        for values in self._values_about(group):
            values.remove(group)

    def _count(self, group: PodGroup, counts: MatchingPods) -> None:
        group.counted_by[counts] = None
        counts.groups[group] = None
        for placed in group.pods.values():
            counts.add(placed.node, +1)

    def _candidates(self, selectors: Sequence[PodSelector], meter: "Meter | None") -> list[PodGroup]:
        """Return all groups that may match, and others: by namespace, and by one label whose value
        the selector gives. Raises what the meter raises.
        """
        labels = selectors[0].labels if selectors else None
        if labels is None:
            return []
        wanted = required_labels(labels.source)
        found: list[PodGroup] = []
        for scope in selectors[0].scopes:
            if wanted is None:
                found += self._within(scope)
            elif wanted and (scope is None or scope in self._groups):
                groups = self._values_of(scope, wanted[0][0], meter).groups
                found += [group for _, value in wanted for group in groups.get(value, ())]
        return found

    def _within(self, scope: str | None) -> Iterable[PodGroup]:
        if scope is not None:
            return self._groups.get(scope, _NO_GROUPS).values()
        return (group for groups in self._groups.values() for group in groups.values())

    def _values_of(self, scope: str | None, key: str, meter: "Meter | None") -> "_Values":
        found = self._by_value.find((scope, key))
        if found is not None:
            return found
        found = self._values_in.setdefault(scope, {})[key] = _Values(scope, key)
        for group in self._within(scope):
            found.add(group)
        account = meter.account if meter is not None else ""
        self._by_value.get((scope, key), account, lambda: found)
        if meter is not None:
            meter.spend()
        return found

    def _values_about(self, group: PodGroup) -> "Iterator[_Values]":
        for scope in (group.namespace, None):
            if (found := self._values_in.get(scope)) is not None:
                yield from found.values()

    def _values_dropped(self, unused: "_Values") -> None:
        found = self._values_in[unused.scope]
        del found[unused.key]
        if not found:
            del self._values_in[unused.scope]


class _Values:
    """Groups of one namespace, or all (None), by their value of one label."""

    def __init__(self, scope: str | None, key: str) -> None:
        self.scope, self.key = scope, key
        self.groups: dict[str, dict[PodGroup, None]] = {}

    def add(self, group: PodGroup) -> None:
        if (value := group.labels.get(self.key)) is not None:
            self.groups.setdefault(value, {})[group] = None

    def remove(self, group: PodGroup) -> None:
        if (value := group.labels.get(self.key)) is not None:
            there = self.groups[value]
            del there[group]
            if not there:
                del self.groups[value]


def selector_key(selector: ParsedSelector | None) -> Hashable:
    """Return a value that is equal for equal selectors."""
    return selector.key if selector is not None else None


def selector_in_words(selector: ParsedSelector | None) -> str:
    """Return a selector as kubectl writes it.

    >>> selector_in_words(ParsedSelector(LabelSelector(match_labels={"app": "web"})))
    'app=web'
    """
    if selector is None:
        return "no pod"
    parts = [f"{key}={value}" for key, value in selector.source.match_labels.items()]
    for each in selector.source.match_expressions:
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
