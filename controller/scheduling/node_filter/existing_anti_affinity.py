"""Required anti-affinity of the pods that are there, by the pods that it keeps away.

A pod's term refuses other pods by their namespace and labels. Terms are interned: the replicas of a
workload have one between them. For each class of waiting pods (namespace, labels) that was asked
for, the pods with a term against it are counted per node and topology key, by difference.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Final

import msgspec

from controller.scheduling.incremental.changes import LruCache
from controller.scheduling.node_filter.affinity_terms import AffinityTerm, InvalidTerm, required_terms
from controller.scheduling.node_filter.node_counts import NodeCounts
from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from hami_dra.api.core import Namespace, Pod

_CLASSES_KEPT: Final = 256
_NO_LABELS: Final[Mapping[str, str]] = {}


class HeldTerm:
    """One term, and the pods that have it, by uid."""

    __slots__ = ("pods", "term")

    def __init__(self, term: AffinityTerm) -> None:
        self.term = term
        self.pods: dict[str, Placed] = {}


class PodClass:
    """Pods of one namespace with equal labels, and the terms against them. `version` increases when
    a term comes or goes.
    """

    def __init__(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self.namespace = namespace
        self._namespace_labels = namespace_labels
        self._labels = labels
        self.version = 0
        self.terms: dict[Hashable, HeldTerm] = {}
        self.counts: dict[str, NodeCounts] = {}
        """By topology key: pods per node with a term against this class, each term counted."""

    def is_refused_by(self, term: AffinityTerm) -> bool:
        return term.matches(self.namespace, self._namespace_labels, self._labels)

    def share_of(self, placed: Placed, topology_key: str) -> int:
        """Return what one pod contributes to the count of its node."""
        return sum(
            each.topology_key == topology_key and self.is_refused_by(each) for each in anti_affinity_of(placed.pod)
        )

    def start(self, key: Hashable, held: HeldTerm, nodes: NodeColumns) -> None:
        self.version += 1
        self.terms[key] = held
        counts = self.counts.setdefault(held.term.topology_key, NodeCounts(nodes))
        for placed in held.pods.values():
            counts.add(placed.node, +1)

    def stop(self, key: Hashable) -> None:
        """Forget a term that no pod has any more."""
        self.version += 1
        topology_key = self.terms.pop(key).term.topology_key
        if all(each.term.topology_key != topology_key for each in self.terms.values()):
            del self.counts[topology_key]


class ExistingAntiAffinity:
    """`namespaces`: by name, live."""

    def __init__(self, nodes: NodeColumns, namespaces: Mapping[str, Namespace]) -> None:
        self._nodes = nodes
        self._namespaces = namespaces
        self._held: dict[Hashable, HeldTerm] = {}
        self._classes: LruCache[PodClass] = LruCache(_CLASSES_KEPT)

    def add(self, uid: str, placed: Placed) -> None:
        for term in anti_affinity_of(placed.pod):
            key = term.key
            held = self._held.get(key)
            if held is None:
                held = self._held[key] = HeldTerm(term)
                for each in self._classes.values():
                    if each.is_refused_by(term):
                        each.start(key, held, self._nodes)
            if uid not in held.pods:
                held.pods[uid] = placed
                self._count(key, placed, +1)

    def remove(self, uid: str, placed: Placed) -> None:
        for term in anti_affinity_of(placed.pod):
            key = term.key
            held = self._held.get(key)
            if held is None or held.pods.pop(uid, None) is None:
                continue  # a pod may have the same term twice
            self._count(key, placed, -1)
            if not held.pods:
                del self._held[key]
                for each in self._classes.values():
                    if key in each.terms:
                        each.stop(key)

    def against(self, pod: Pod) -> PodClass | None:
        """Return the terms against pods like this one; None if there are none."""
        if not self._held:
            return None
        found = self._classes.get(
            (pod.metadata.namespace, msgspec.json.encode(pod.metadata.labels, order="deterministic")),
            lambda: self._class_of(pod),
        )
        return found if found.terms else None

    def namespaces_changed(self) -> None:
        self._classes.clear()

    def _class_of(self, pod: Pod) -> PodClass:
        namespace = self._namespaces.get(pod.metadata.namespace)
        labels = namespace.metadata.labels if namespace is not None else _NO_LABELS
        found = PodClass(pod.metadata.namespace, labels, pod.metadata.labels)
        for key, held in self._held.items():
            if found.is_refused_by(held.term):
                found.start(key, held, self._nodes)
        return found

    def _count(self, key: Hashable, placed: Placed, sign: int) -> None:
        for each in self._classes.values():
            held = each.terms.get(key)
            if held is not None:
                each.counts[held.term.topology_key].add(placed.node, sign)


def anti_affinity_of(pod: Pod) -> tuple[AffinityTerm, ...]:
    """Return the required anti-affinity of a pod that is there. Of terms that cannot be parsed
    kube-scheduler reads none.
    """
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return ()
    try:
        return required_terms(pod, affinity.pod_anti_affinity)
    except InvalidTerm:
        return ()


def pods_with_terms(found: PodClass, topology_key: str) -> Iterator[tuple[AffinityTerm, Placed]]:
    """Yield the pods with a term against the class, and that term."""
    for held in found.terms.values():
        if held.term.topology_key == topology_key:
            for placed in held.pods.values():
                yield held.term, placed
