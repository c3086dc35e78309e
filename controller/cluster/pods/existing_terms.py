"""Terms of inter-pod affinity of the pods that are there, by the pods that they are about.

A pod's term speaks of other pods by their namespace and labels. Terms are interned: the replicas of
a workload have one between them. For each class of waiting pods (namespace, labels) that was asked
for, the weights of the terms about it are summed per node and topology key, by difference. Required
anti-affinity, where every term weighs 1, refuses nodes; preferred terms score them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from controller.cluster.incremental.changes import Shared
from controller.cluster.nodes.label_index import LabelsIndex, SelectorIndex
from controller.cluster.nodes.node_counts import NodeCounts
from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.pods.affinity_terms import AffinityTerm, WeightedTerm
from controller.cluster.pods.pod_groups import Meter
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Namespace, Pod

_CLASSES_KEPT: Final = 256
_PENDING_KEPT: Final = 64
"""Terms that a class lets wait before it looks for those that are gone."""
_LINKS_KEPT: Final = 250_000
"""Terms of all classes together. Beyond it all classes are dropped, and made again at first use."""
_PORTION: Final = 2_000
"""Requirements that are held against labels, and pods that are counted, between two reports to the meter."""
_MOST_NAMESPACES: Final = 32
"""A term that names more is looked up for every namespace."""
_EVERY: Final = None
_EVERYWHERE: Final = (_EVERY,)
_NO_LABELS: Final[Mapping[str, str]] = {}
TermsOf = Callable[[Pod], tuple[WeightedTerm, ...]]
"""The terms of a pod that is there, each once."""


class Blamed(NamedTuple):
    """Pods whose terms are left for later, because reading them held up a leader."""

    uids: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    """Of which all pods are."""

    def is_about(self, pod: Pod) -> bool:
        return pod.metadata.uid in self.uids or pod.metadata.namespace in self.namespaces


class TermReading:
    """Whose terms are read at the moment, for a watchdog, and whose are not to be read."""

    def __init__(self) -> None:
        self.pod: Pod | None = None
        self.blamed: Callable[[], Blamed] = Blamed


class HeldTerm:
    """One term with its weight, the pods that have it, by uid, and the classes that it is about."""

    __slots__ = ("classes", "pods", "term", "weight")

    def __init__(self, weighted: WeightedTerm) -> None:
        self.term, self.weight = weighted.term, weighted.weight
        self.pods: dict[str, Placed] = {}
        self.classes: dict[PodClass, None] = {}

    @property
    def pod(self) -> Pod | None:
        """The pod whose namespace pays for reading the term; None if no pod has it any more."""
        return next((each.pod for each in self.pods.values()), None)


class PodClass:
    """Pods of one namespace with equal labels, and the terms about them. `version` increases when a
    term comes or goes.
    """

    def __init__(
        self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str], terms_of: TermsOf
    ) -> None:
        self.namespace = namespace
        self.labels = labels
        self._namespace_labels = namespace_labels
        self._terms_of = terms_of
        self.version = 0
        self.terms: dict[HeldTerm, None] = {}
        self.pending: list[HeldTerm] = []
        """Terms that are still to be held against the labels; some may be gone."""
        self.set_aside: list[HeldTerm] = []
        """Terms of those who are `blamed`: not looked at again before that changes."""
        self.blamed = Blamed()
        self._most_pending = _PENDING_KEPT
        self.counts: dict[str, NodeCounts] = {}
        """By topology key: per node the weights of the terms about this class that its pods have."""
        self._terms_with: Counter[str] = Counter()
        """Number of terms by topology key."""

    def put_off(self, held: HeldTerm) -> int:
        """Let a new term wait, and return by how many more terms wait than before.

        Those that are gone are dropped each time that the number has doubled, so that a class that
        nobody asks about holds at most twice the terms there are.
        """
        before = self.waiting
        if before >= self._most_pending:
            self.pending = [each for each in self.pending if each.pods]
            self.set_aside = [each for each in self.set_aside if each.pods]
            self._most_pending = max(2 * self.waiting, _PENDING_KEPT)
        self.pending.append(held)
        return self.waiting - before

    @property
    def waiting(self) -> int:
        return len(self.pending) + len(self.set_aside)

    def is_meant_by(self, term: AffinityTerm) -> bool:
        return term.matches(self.namespace, self._namespace_labels, self.labels)

    def share_of(self, placed: Placed, topology_key: str) -> int:
        """Return what one pod contributes to the count of its node."""
        return sum(
            each.weight
            for each in self._terms_of(placed.pod)
            if each.term.topology_key == topology_key and self.is_meant_by(each.term)
        )

    def counts_on(self, nodes: NodeColumns) -> dict[str, NodeCounts]:
        """Return the counts by topology key, for keys that some node has: others reach no node, and
        a tenant may name thousands.
        """
        return {key: counts for key in nodes.label_keys if (counts := self.counts.get(key)) is not None}

    def columns_on(self, nodes: NodeColumns, own: Placed | None) -> dict[str, Ints]:
        """Return `counts_on` as columns of shape (nodes.size,), less what the pod itself contributes."""
        found = self.counts_on(nodes).items()
        if own is None:
            return {key: counts.column() for key, counts in found}
        return {key: counts.without(own.node, self.share_of(own, key)) for key, counts in found}

    def start(self, held: HeldTerm, nodes: NodeColumns) -> None:
        """Count a term and the pods that have it."""
        self.version += 1
        self.terms[held] = None
        held.classes[self] = None
        self._terms_with[held.term.topology_key] += 1
        counts = self.counts.get(held.term.topology_key)
        if counts is None:
            counts = self.counts[held.term.topology_key] = NodeCounts(nodes)
        for placed in held.pods.values():
            counts.add(placed.node, held.weight)

    def stop(self, held: HeldTerm) -> None:
        self.version += 1
        del self.terms[held]
        topology_key = held.term.topology_key
        self._terms_with[topology_key] -= 1
        if not self._terms_with[topology_key]:
            del self.counts[topology_key], self._terms_with[topology_key]


class TermIndex:
    """Terms by the namespaces that they name and by a label that they require, so that pods with
    labels that were never seen are held against the terms that may be about them, and not against
    all.
    """

    def __init__(self) -> None:
        self._by_namespace: dict[str | None, SelectorIndex[HeldTerm]] = {}
        """The key `_EVERY`: terms that may be about any namespace."""

    def add(self, held: HeldTerm) -> None:
        for namespace in _scopes(held.term):
            if held.term.selector is not None:
                self._by_namespace.setdefault(namespace, SelectorIndex()).add(held, held.term.selector.source)

    def remove(self, held: HeldTerm) -> None:
        for namespace in _scopes(held.term):
            if held.term.selector is not None:
                index = self._by_namespace[namespace]
                index.remove(held, held.term.selector.source)
                if not index:
                    del self._by_namespace[namespace]

    def candidates(self, namespace: str, labels: Mapping[str, str]) -> Iterator[HeldTerm]:
        """Yield the terms that may be about such pods, each once."""
        for scope in (namespace, _EVERY):
            if (index := self._by_namespace.get(scope)) is not None:
                yield from index.candidates(labels)


class ExistingTerms:
    """`namespaces`: by name, live. `terms_of`: which terms of a pod count."""

    def __init__(
        self, nodes: NodeColumns, namespaces: Mapping[str, Namespace], terms_of: TermsOf, reading: TermReading
    ) -> None:
        self._reading = reading
        self._nodes = nodes
        self._namespaces = namespaces
        self._terms_of = terms_of
        self._held: dict[Hashable, HeldTerm] = {}
        self._index = TermIndex()
        self._classes: Shared[PodClass] = Shared(_CLASSES_KEPT, dropped=self._dropped)
        self._classes_by_label: LabelsIndex[PodClass] = LabelsIndex()
        self._links = 0
        """Terms of all classes, also those that wait to be read."""
        self.meter: Callable[[], Meter | None] = lambda: None
        """As of `PodGroups`."""

    def add(self, uid: str, placed: Placed) -> None:
        if placed.pod.spec.affinity is None:
            return
        for weighted in self._terms_of(placed.pod):
            key = weighted.key
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = HeldTerm(weighted)
                self._start(held)
            held.pods[uid] = placed
            _count(held, placed, held.weight)

    def remove(self, uid: str, placed: Placed) -> None:
        if placed.pod.spec.affinity is None:
            return
        for weighted in self._terms_of(placed.pod):
            key = weighted.key
            held = self._held[key]
            del held.pods[uid]
            _count(held, placed, -held.weight)
            if not held.pods:
                del self._held[key]
                self._index.remove(held)
                self._links -= len(held.classes)
                for each in held.classes:
                    each.stop(held)

    def may_be_about(self, pod: Pod) -> bool:
        """Return whether `about` may find a term; reads no selector."""
        meta = pod.metadata
        return next(self._index.candidates(meta.namespace, meta.labels), None) is not None

    def about(self, pod: Pod) -> PodClass | None:
        """Return the terms about pods like this one; None if there are none.

        Raises what the meter raises; the next call then continues.
        """
        if not self._held:
            return None
        found = self._classes.get(
            (pod.metadata.namespace, msgspec.json.encode(pod.metadata.labels, order="deterministic")),
            pod.metadata.namespace,
            lambda: self._class_of(pod),
        )
        if found.waiting:
            self._catch_up(found)
        return found if found.terms else None

    def namespace_changed(self, name: str) -> None:
        """Note that a namespace came, went, or changed its labels: which terms are about its pods."""
        self._classes.drop(lambda each: each.namespace == name)

    def _start(self, held: HeldTerm) -> None:
        """Let the index see a new term, and the classes that it may be about: they read it at their next use."""
        self._index.add(held)
        if (selector := held.term.selector) is not None:
            for each in self._classes_by_label.candidates(selector.source):
                self._links += each.put_off(held)
            if self._links > _LINKS_KEPT:
                self._classes.clear()

    def _class_of(self, pod: Pod) -> PodClass:
        namespace = self._namespaces.get(pod.metadata.namespace)
        labels = namespace.metadata.labels if namespace is not None else _NO_LABELS
        found = PodClass(pod.metadata.namespace, labels, pod.metadata.labels, self._terms_of)
        found.pending = [*self._index.candidates(found.namespace, found.labels)]
        if self._links + len(found.pending) > _LINKS_KEPT:
            self._classes.clear()
        self._links += len(found.pending)
        self._classes_by_label.add(found, found.labels)
        return found

    def _catch_up(self, found: PodClass) -> None:
        """Hold the labels of a class against terms that are still to come, in portions, at the
        expense of the namespaces that have these terms.
        """
        meter, work, owner, reading = self.meter(), 0, "", self._reading
        blamed = reading.blamed()
        if blamed != found.blamed:
            found.blamed = blamed
            found.pending += found.set_aside
            found.set_aside = []
        try:
            while found.pending:
                held = found.pending[-1]
                pod = held.pod
                held_owner = pod.metadata.namespace if pod is not None else ""
                if meter is not None and (work >= _PORTION or (held_owner != owner and work)):
                    work = 0
                    meter.spend(owner)
                owner, reading.pod = held_owner, pod
                found.pending.pop()
                work += 1 + held.term.size
                if pod is not None and blamed.is_about(pod):
                    found.set_aside.append(held)
                elif pod is not None and found.is_meant_by(held.term):
                    found.start(held, self._nodes)
                    work += len(held.pods)
                else:
                    self._links -= 1
            if meter is not None and work:
                meter.spend(owner)
        finally:
            reading.pod = None

    def _dropped(self, unused: PodClass) -> None:
        self._classes_by_label.remove(unused, unused.labels)
        self._links -= len(unused.terms) + unused.waiting
        for held in unused.terms:
            del held.classes[unused]


def _count(held: HeldTerm, placed: Placed, change: int) -> None:
    for each in held.classes:
        each.counts[held.term.topology_key].add(placed.node, change)


def _scopes(term: AffinityTerm) -> Collection[str | None]:
    is_bounded = term.namespace_selector is None and len(term.namespaces) <= _MOST_NAMESPACES
    return term.namespaces if is_bounded else _EVERYWHERE


def pods_with_terms(found: PodClass, topology_key: str) -> Iterator[tuple[AffinityTerm, Placed]]:
    """Yield the pods with a term about the class, and that term."""
    for held in found.terms:
        if held.term.topology_key == topology_key:
            for placed in held.pods.values():
                yield held.term, placed
