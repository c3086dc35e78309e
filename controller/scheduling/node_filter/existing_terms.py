"""Terms of inter-pod affinity of the pods that are there, by the pods that they are about.

A pod's term speaks of other pods by their namespace and labels. Terms are interned: the replicas of a
workload have one between them. For each class of waiting pods (namespace, labels) that was asked
for, the weights of the terms about it are summed per node and topology key, by difference. Required
anti-affinity, where every term weighs 1, refuses nodes; preferred terms score them.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final

import msgspec

from controller.scheduling.incremental.changes import Shared
from controller.scheduling.node_filter.affinity_terms import AffinityTerm, WeightedTerm
from controller.scheduling.node_filter.node_counts import NodeCounts
from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from hami_dra.api.arrays import Ints
from hami_dra.api.core import Namespace, Pod

_CLASSES_KEPT: Final = 256
_NO_LABELS: Final[Mapping[str, str]] = {}
TermsOf = Callable[[Pod], tuple[WeightedTerm, ...]]
"""The terms of a pod that is there, each once."""


class HeldTerm:
    """One term with its weight, and the pods that have it, by uid."""

    __slots__ = ("pods", "term", "weight")

    def __init__(self, weighted: WeightedTerm) -> None:
        self.term, self.weight = weighted.term, weighted.weight
        self.pods: dict[str, Placed] = {}


class PodClass:
    """Pods of one namespace with equal labels, and the terms about them. `version` increases when a
    term comes or goes.
    """

    def __init__(
        self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str], terms_of: TermsOf
    ) -> None:
        self.namespace = namespace
        self._namespace_labels = namespace_labels
        self._labels = labels
        self._terms_of = terms_of
        self.version = 0
        self.terms: dict[Hashable, HeldTerm] = {}
        self.counts: dict[str, NodeCounts] = {}
        """By topology key: per node the weights of the terms about this class that its pods have."""
        self._terms_with: Counter[str] = Counter()
        """Number of terms by topology key."""

    def is_meant_by(self, term: AffinityTerm) -> bool:
        return term.matches(self.namespace, self._namespace_labels, self._labels)

    def share_of(self, placed: Placed, topology_key: str) -> int:
        """Return what one pod contributes to the count of its node."""
        return sum(
            each.weight
            for each in self._terms_of(placed.pod)
            if each.term.topology_key == topology_key and self.is_meant_by(each.term)
        )

    def counts_on(self, nodes: NodeColumns) -> dict[str, NodeCounts]:
        """Return the counts by topology key, for keys that some node has: others reach no node, and a
        tenant may name thousands.
        """
        return {key: counts for key in nodes.label_keys if (counts := self.counts.get(key)) is not None}

    def columns_on(self, nodes: NodeColumns, own: Placed | None) -> dict[str, Ints]:
        """Return `counts_on` as columns of shape (nodes.size,), less what the pod itself contributes."""
        found = self.counts_on(nodes).items()
        if own is None:
            return {key: counts.column() for key, counts in found}
        return {key: counts.without(own.node, self.share_of(own, key)) for key, counts in found}

    def start(self, key: Hashable, held: HeldTerm, nodes: NodeColumns) -> None:
        self.version += 1
        self.terms[key] = held
        self._terms_with[held.term.topology_key] += 1
        counts = self.counts.setdefault(held.term.topology_key, NodeCounts(nodes))
        for placed in held.pods.values():
            counts.add(placed.node, held.weight)

    def stop(self, key: Hashable) -> None:
        """Forget a term that no pod has any more."""
        self.version += 1
        topology_key = self.terms.pop(key).term.topology_key
        self._terms_with[topology_key] -= 1
        if not self._terms_with[topology_key]:
            del self.counts[topology_key], self._terms_with[topology_key]


class ExistingTerms:
    """`namespaces`: by name, live. `terms_of`: which terms of a pod count."""

    def __init__(self, nodes: NodeColumns, namespaces: Mapping[str, Namespace], terms_of: TermsOf) -> None:
        self._nodes = nodes
        self._namespaces = namespaces
        self._terms_of = terms_of
        self._held: dict[Hashable, HeldTerm] = {}
        self._classes: Shared[PodClass] = Shared(_CLASSES_KEPT)

    def add(self, uid: str, placed: Placed) -> None:
        if placed.pod.spec.affinity is None:
            return
        for weighted in self._terms_of(placed.pod):
            key = weighted.key
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = HeldTerm(weighted)
                for each in self._classes.values():
                    if each.is_meant_by(weighted.term):
                        each.start(key, held, self._nodes)
            held.pods[uid] = placed
            self._count(key, placed, held.weight)

    def remove(self, uid: str, placed: Placed) -> None:
        if placed.pod.spec.affinity is None:
            return
        for weighted in self._terms_of(placed.pod):
            key = weighted.key
            held = self._held[key]
            del held.pods[uid]
            self._count(key, placed, -held.weight)
            if not held.pods:
                del self._held[key]
                for each in self._classes.values():
                    if key in each.terms:
                        each.stop(key)

    def about(self, pod: Pod) -> PodClass | None:
        """Return the terms about pods like this one; None if there are none."""
        if not self._held:
            return None
        found = self._classes.get(
            (pod.metadata.namespace, msgspec.json.encode(pod.metadata.labels, order="deterministic")),
            pod.metadata.namespace,
            lambda: self._class_of(pod),
        )
        return found if found.terms else None

    def namespaces_changed(self) -> None:
        self._classes.clear()

    def _class_of(self, pod: Pod) -> PodClass:
        namespace = self._namespaces.get(pod.metadata.namespace)
        labels = namespace.metadata.labels if namespace is not None else _NO_LABELS
        found = PodClass(pod.metadata.namespace, labels, pod.metadata.labels, self._terms_of)
        for key, held in self._held.items():
            if found.is_meant_by(held.term):
                found.start(key, held, self._nodes)
        return found

    def _count(self, key: Hashable, placed: Placed, change: int) -> None:
        for each in self._classes.values():
            held = each.terms.get(key)
            if held is not None:
                each.counts[held.term.topology_key].add(placed.node, change)


def pods_with_terms(found: PodClass, topology_key: str) -> Iterator[tuple[AffinityTerm, Placed]]:
    """Yield the pods with a term about the class, and that term."""
    for held in found.terms.values():
        if held.term.topology_key == topology_key:
            for placed in held.pods.values():
                yield held.term, placed
