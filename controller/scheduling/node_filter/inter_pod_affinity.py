"""Required affinity and anti-affinity between pods, in both directions, as kube-scheduler's
InterPodAffinity plugin judges it (interpodaffinity/filtering.go).

A node is refused, in this order, because
- of the pod's affinity: in one of the node's domains no pod runs that matches all terms (or the node
  lacks the topology key). The first pod of a series that wants to be together may start: it matches
  its own terms, and no pod anywhere does;
- of the pod's anti-affinity: in the node's domain a pod runs that matches one of the terms;
- of the anti-affinity of a pod in the node's domain, one of whose terms matches this pod.

Counts per node are updated by difference (`pod_groups`, `existing_anti_affinity`); a count that
changed is spread over its domains with one table:

    nodes n0 n1 n2 n3   zones a a b (none)   pods that match 0 1 0 0
    table  a: yes, b: no, none: no           refused by anti-affinity  n0, n1
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import LruCache
from controller.scheduling.node_filter.affinity_terms import AffinityTerm, affinity_problem, required_terms
from controller.scheduling.node_filter.existing_anti_affinity import PodClass, pods_with_terms
from controller.scheduling.node_filter.filter_state import FilterState
from controller.scheduling.node_filter.nodes import Placed
from controller.scheduling.node_filter.plugin import PodRefusal, RecomputedFilter
from controller.scheduling.node_filter.pod_groups import MatchingPods
from controller.scheduling.node_filter.topology_domains import NO_DOMAIN, place_in_words
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Namespace, Node, Pod

_SHAPES_KEPT: Final = 128


class InterPodAffinity:
    def __init__(self, state: FilterState) -> None:
        self._state = state
        self._filters: LruCache[AffinityFilter] = LruCache(_SHAPES_KEPT, lambda each: each.close())

    def filter_for(self, pod: Pod, own: Placed | None) -> "AffinityFilter | PodRefusal | None":
        affinity = pod.spec.affinity
        if affinity is not None and (problem := affinity_problem(pod)):
            return PodRefusal(names.NODE_POD_AFFINITY, f"InterPodAffinity: {problem}")
        against = self._state.existing.against(pod)
        near: tuple[AffinityTerm, ...] = ()
        apart: tuple[AffinityTerm, ...] = ()
        if affinity is not None:
            near, apart = required_terms(pod, affinity.pod_affinity), required_terms(pod, affinity.pod_anti_affinity)
        if against is None and not near and not apart:
            return None
        rules = _Rules(near, apart, against, bool(near) and _matches_itself(pod, near, self._state.namespaces))
        found = self._filters.get(rules.key, lambda: AffinityFilter(self._state, rules))
        return found if own is None else found.without(own)

    def namespaces_changed(self) -> None:
        """Resolve the namespace selectors of all terms again."""
        self._state.existing.namespaces_changed()
        self._filters.clear()


@dataclass(frozen=True, slots=True)
class _Rules:
    """What decides about pods of one shape."""

    near: tuple[AffinityTerm, ...]
    apart: tuple[AffinityTerm, ...]
    against: PodClass | None
    matches_itself: bool

    @property
    def key(self) -> Hashable:
        near, apart = tuple([each.key for each in self.near]), tuple([each.key for each in self.apart])
        return near, apart, self.against, self.matches_itself


class AffinityFilter(RecomputedFilter):
    """The terms of pods of one shape, and those against them."""

    def __init__(self, state: FilterState, rules: _Rules, own: Placed | None = None) -> None:
        super().__init__(names.NODE_POD_AFFINITY)
        self._state = state
        self._rules = rules
        self._own = own
        self._near = self._acquire(rules.near) if rules.near else None
        """The pods that match all terms of the affinity."""
        self._apart = [self._acquire((term,)) for term in rules.apart]

    def close(self) -> None:
        """Release the counts; the filter must not be used any more."""
        if self._near is not None:
            self._state.groups.release(_counts_key(self._rules.near))
        for term in self._rules.apart:
            self._state.groups.release(_counts_key((term,)))

    def without(self, own: Placed) -> "AffinityFilter":
        """Return the filter as if this pod counted nowhere. For use at once."""
        found = AffinityFilter(self._state, self._rules, own)
        found.close()  # this filter holds the same counts
        found.refresh()
        return found

    def holds_in_any_order(self, row: int, unbound: tuple[Placed, ...]) -> bool:
        """Pods that are bound later can only help against anti-affinity; affinity must hold without
        them. Where no pod is bound yet, the first of a series may start, and the others must be in
        its domains.
        """
        near = self._near
        if near is None:
            return True
        later = [each for each in unbound if each is not self._own and near.counts(each.pod)]
        if not later:
            return True
        bound = self._column(near).copy()
        rows = [self._state.nodes.index_of(each.node) for each in later]
        for each in rows:
            if each >= 0:
                bound[each] -= 1
        if self._is_near(bound)[row]:
            return True
        domains = [self._state.domains.of(term.topology_key) for term in self._rules.near]
        together = all(each < 0 or all(domain[each] == domain[row] for domain in domains) for each in rows)
        return self._rules.matches_itself and together and not self._counts_anywhere(bound)

    def sentence(self, pod: Pod, row: int) -> str:
        node = self._state.nodes.node(row)
        if self._near is not None and not self._is_near(self._column(self._near))[row]:
            return f"InterPodAffinity: {self._far_in_words(node, self._near)}"
        for term, counts in zip(self._rules.apart, self._apart, strict=True):
            if found := self._one_of(counts.pods(), node, term.topology_key):
                where = place_in_words(node, term.topology_key)
                return f"InterPodAffinity: anti-affinity {term.words} {where}: Pod {found}"
        against = self._rules.against
        for topology_key in against.counts if against is not None else ():
            assert against is not None
            for term, placed in pods_with_terms(against, topology_key):
                if found := self._one_of((placed,), node, topology_key):
                    where = place_in_words(node, topology_key)
                    return f"InterPodAffinity: Pod {found} {where} has an anti-affinity to {term.words}"
        return f"InterPodAffinity: the affinity rules of pod {pod.key} are not met"

    def _acquire(self, terms: tuple[AffinityTerm, ...]) -> MatchingPods:
        state = self._state
        pods = [term.pods(state.namespaces) for term in terms]
        return state.groups.acquire(_counts_key(terms), pods, leaving=True)

    def _versions(self) -> object:
        near, against = self._near, self._rules.against
        return (
            self._state.nodes.changes.version,
            near.version if near is not None else 0,
            [each.version for each in self._apart],
            against and (against.version, [each.version for each in against.counts.values()]),
        )

    def _compute(self) -> Bools:
        near = self._near
        if near is None:
            refused: Bools = np.zeros(self._state.nodes.size, dtype=np.bool_)
        else:
            refused = ~self._is_near(self._column(near))
        for term, counts in zip(self._rules.apart, self._apart, strict=True):
            refused |= self._reaches(self._column(counts), term.topology_key)
        against = self._rules.against
        if against is not None:
            for topology_key, held in against.counts.items():
                own = self._own
                column = held.column() if own is None else held.without(own.node, against.share_of(own, topology_key))
                refused |= self._reaches(column, topology_key)
        return refused

    def _column(self, counts: MatchingPods) -> Ints:
        own = self._own
        return counts.column() if own is None else counts.without(own.node, counts.share_of(own))

    def _reaches(self, column: Ints, topology_key: str) -> Bools:
        """Return the nodes in whose domain something is counted."""
        domain = self._state.domains.of(topology_key)
        table = np.zeros(int(domain.max(initial=NO_DOMAIN)) + 2, dtype=np.bool_)
        table[domain[column > 0]] = True
        table[NO_DOMAIN] = False
        reached: Bools = table[domain]
        return reached

    def _is_near(self, column: Ints) -> Bools:
        """Return the nodes that the affinity admits, by the number of pods per node that match it."""
        state = self._state
        near: Bools = np.ones(state.nodes.size, dtype=np.bool_)
        for term in self._rules.near:
            near &= self._reaches(column, term.topology_key)
        if self._rules.matches_itself and not self._counts_anywhere(column):
            near[:] = True
            for term in self._rules.near:
                near &= state.domains.of(term.topology_key) != NO_DOMAIN
        return near

    def _counts_anywhere(self, column: Ints) -> bool:
        """Return whether a pod that matches is in some domain of a term; pods elsewhere do not
        count.
        """
        counted = column > 0
        domains = self._state.domains
        return any(bool((counted & (domains.of(term.topology_key) != NO_DOMAIN)).any()) for term in self._rules.near)

    def _far_in_words(self, node: Node, near: MatchingPods) -> str:
        for term in self._rules.near:
            if term.topology_key not in node.metadata.labels:
                return f"the node has no label {term.topology_key}, which the affinity to {term.words} needs"
        for term in self._rules.near:
            if not self._one_of(near.pods(), node, term.topology_key):
                return f"affinity {term.words}: no such pod {place_in_words(node, term.topology_key)}"
        return "no pod matches the affinity"

    def _one_of(self, pods: Iterable[Placed], node: Node, topology_key: str) -> str:
        """Return the key of one of these pods in the node's domain, or an empty text."""
        value = node.metadata.labels.get(topology_key)
        if value is None:
            return ""
        nodes = self._state.nodes
        for each in pods:
            row = nodes.index_of(each.node)
            if row >= 0 and each is not self._own and nodes.node(row).metadata.labels.get(topology_key) == value:
                return each.pod.key
        return ""


def _matches_itself(pod: Pod, terms: tuple[AffinityTerm, ...], namespaces: Mapping[str, Namespace]) -> bool:
    meta = pod.metadata
    return all(term.pods(namespaces).matches(meta.namespace, meta.labels) for term in terms)


def _counts_key(terms: tuple[AffinityTerm, ...]) -> Hashable:
    """Return the key of the pods that match all terms, wherever they run."""
    return "affinity", tuple([each.key for each in terms])
