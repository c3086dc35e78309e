"""Required affinity and anti-affinity between pods (kube-scheduler's InterPodAffinity,
interpodaffinity/filtering.go).

Affinity: a node is admitted if in its domains a pod runs that matches all terms. The first pod of a
series that wants to be together may start: it matches its own terms, and no pod anywhere does.
Anti-affinity: a node is refused, in this order, because in its domain a pod runs that matches a term
of this pod, or one of whose terms matches this pod.
"""

from collections.abc import Hashable

import numpy as np

from controller.cluster.nodes.node_labels import NO_DOMAIN, place_in_words
from controller.cluster.nodes.nodes import Placed
from controller.cluster.pods.affinity_terms import AffinityTerm, affinity_problem, required_terms
from controller.cluster.pods.existing_terms import PodClass, pods_with_terms
from controller.reasons import catalogue
from controller.rules.counted_shape import CountedShape, counted_by
from controller.rules.filter_state import FilterState
from controller.rules.plugin import PodRefusal, RecomputedFilter
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Pod


class PodAffinityPlugin:
    """Asked before `PodAntiAffinityPlugin`, it also refuses pods with a term that cannot be parsed."""

    code = catalogue.NODE_POD_AFFINITY

    def __init__(self, state: FilterState) -> None:
        self._state = state

    def filter_for(self, pod: Pod, own: Placed | None) -> "PodAffinityFilter | PodRefusal | None":
        affinity = pod.spec.affinity
        if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
            return None
        if problem := affinity_problem(pod):
            return PodRefusal(self.code, f"InterPodAffinity: {problem}")
        terms = required_terms(pod, affinity.pod_affinity)
        if not terms:
            return None
        itself = _matches_itself(pod, terms, self._state)
        key = tuple([each.key for each in terms]), itself
        shape = self._state.shapes.of(
            pod, self.code, key, lambda: PodAffinityFilter(self._state, terms, matches_itself=itself), len(terms)
        )
        return shape.current(own)


class PodAffinityFilter(CountedShape, RecomputedFilter):
    """The affinity of pods of one shape."""

    def __init__(self, state: FilterState, terms: tuple[AffinityTerm, ...], *, matches_itself: bool) -> None:
        RecomputedFilter.__init__(self, PodAffinityPlugin.code)
        CountedShape.__init__(self, state, [counted_by(state, terms)], leaving=True, terms=terms)
        self._matches_itself = matches_itself
        (self._pods,) = self.counts
        """The pods that match all terms."""

    def holds_in_any_order(self, row: int, unbound: tuple[Placed, ...]) -> bool:
        """The affinity must hold without the pods that are bound later. Where no pod is bound yet,
        the first of a series may start, and the others must be in its domains.
        """
        later = [each for each in unbound if each is not self._own and self._pods.counts(each.pod)]
        if not later:
            return True
        bound = self._column(self._pods).copy()
        rows = [found for each in later if (found := self._state.nodes.index_of(each.node)) >= 0]
        for each in rows:
            bound[each] -= 1
        if self._counts_anywhere(bound):
            return bool(self._admits(bound)[row])
        domains = [self._state.labels.domains(term.topology_key) for term in self._terms]
        together = all(domain[each] == domain[row] for domain in domains for each in rows)
        return self._matches_itself and together

    def sentence(self, pod: Pod, row: int) -> str:
        node = self._state.nodes.node(row)
        for term in self._terms:
            if term.topology_key not in node.metadata.labels:
                return (
                    f"InterPodAffinity: the node has no label {term.topology_key}, the topologyKey of the pod's affinity to "
                    f"{term.words}"
                )
        for term in self._terms:
            if not self._one_of(self._pods.pods(), node, term.topology_key):
                where = place_in_words(node, term.topology_key)
                return f"InterPodAffinity: no pod with {term.words} runs {where}, which the pod's affinity requires"
        return f"InterPodAffinity: the affinity of pod {pod.key} is not met"

    def _versions(self) -> object:
        return self._state.nodes.changes.version, self._pods.version

    def _compute(self) -> Bools:
        return ~self._admits(self._column(self._pods))

    def _admits(self, column: Ints) -> Bools:
        """Return the nodes that the affinity admits, by the number of pods per node that match it."""
        state = self._state
        near: Bools = np.ones(state.nodes.size, dtype=np.bool_)
        first = self._matches_itself and not self._counts_anywhere(column)
        for term in self._terms:
            near &= (
                state.labels.domains(term.topology_key) != NO_DOMAIN
                if first
                else self._reached(column, term.topology_key)
            )
        return near

    def _counts_anywhere(self, column: Ints) -> bool:
        """Return whether a pod that matches is in some domain of a term; pods elsewhere do not count."""
        counted = column > 0
        return any(
            bool((counted & (self._state.labels.domains(term.topology_key) != NO_DOMAIN)).any()) for term in self._terms
        )


def _matches_itself(pod: Pod, terms: tuple[AffinityTerm, ...], state: FilterState) -> bool:
    meta = pod.metadata
    return all(state.pods_of(term).matches(meta.namespace, meta.labels) for term in terms)


class PodAntiAffinityPlugin:
    """Asked about pods whose terms can be parsed (`PodAffinityPlugin`)."""

    code = catalogue.NODE_POD_ANTI_AFFINITY

    def __init__(self, state: FilterState) -> None:
        self._state = state

    def filter_for(self, pod: Pod, own: Placed | None) -> "PodAntiAffinityFilter | None":
        affinity, against = pod.spec.affinity, self._state.anti_affinity.about(pod)
        terms = required_terms(pod, affinity.pod_anti_affinity) if affinity is not None else ()
        if against is None and not terms:
            return None
        key: Hashable = tuple([each.key for each in terms]), against
        shape = self._state.shapes.of(
            pod, self.code, key, lambda: PodAntiAffinityFilter(self._state, terms, against), len(terms)
        )
        return shape.current(own)


class PodAntiAffinityFilter(CountedShape, RecomputedFilter):
    """The anti-affinity of pods of one shape, and that of other pods against them. Pods that are
    bound later can only help, so it holds in any order.
    """

    def __init__(self, state: FilterState, terms: tuple[AffinityTerm, ...], against: PodClass | None) -> None:
        RecomputedFilter.__init__(self, PodAntiAffinityPlugin.code)
        CountedShape.__init__(self, state, [counted_by(state, (each,)) for each in terms], leaving=True, terms=terms)
        self._against = against

    def sentence(self, pod: Pod, row: int) -> str:
        state, node = self._state, self._state.nodes.node(row)
        for term, pods in zip(self._terms, self.counts, strict=True):
            if found := self._one_of(pods.pods(), node, term.topology_key):
                where = place_in_words(node, term.topology_key)
                other = state.pod_names.of(found, pod)
                return f"InterPodAffinity: {other} {where} has {term.words}, which the pod's anti-affinity excludes"
        for topology_key in self._against.counts_on(state.nodes) if self._against is not None else ():
            assert self._against is not None
            for term, placed in pods_with_terms(self._against, topology_key):
                if found := self._one_of((placed,), node, topology_key):
                    where = place_in_words(node, topology_key)
                    other = state.pod_names.of(found, pod)
                    words = term.words if state.pod_names.may_name(found, pod) else "pods like this one"
                    return f"InterPodAffinity: {other} {where} has an anti-affinity to {words}"
        return f"InterPodAffinity: an anti-affinity keeps pod {pod.key} away"

    def _versions(self) -> object:
        against = self._against
        return (
            self._state.nodes.changes.version,
            [each.version for each in self.counts],
            against and (against.version, [each.version for each in against.counts_on(self._state.nodes).values()]),
        )

    def _compute(self) -> Bools:
        state, against = self._state, self._against
        refused: Bools = np.zeros(state.nodes.size, dtype=np.bool_)
        for term, pods in zip(self._terms, self.counts, strict=True):
            refused |= self._reached(self._column(pods), term.topology_key)
        if against is not None:
            for topology_key, column in against.columns_on(state.nodes, self._own).items():
                refused |= self._reached(column, topology_key)
        return refused
