"""Required anti-affinity between pods, in both directions (the second part of kube-scheduler's
InterPodAffinity, interpodaffinity/filtering.go).

A node is refused, in this order, because in its domain a pod runs that matches a term of this pod,
or one of whose terms matches this pod.
"""

from collections.abc import Hashable
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import Shared
from controller.scheduling.node_filter.affinity_columns import (
    acquire_each,
    one_of,
    reached,
    release_pods,
    shape_weight,
    without,
)
from controller.scheduling.node_filter.affinity_terms import AffinityTerm, required_terms
from controller.scheduling.node_filter.existing_terms import PodClass, pods_with_terms
from controller.scheduling.node_filter.filter_state import FilterState
from controller.scheduling.node_filter.nodes import Placed
from controller.scheduling.node_filter.plugin import RecomputedFilter
from controller.scheduling.node_filter.topology_domains import place_in_words
from hami_dra.api import names
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Namespace, Pod

_SHAPES_KEPT: Final = 256
"""Terms of all shapes together."""


class PodAntiAffinityPlugin:
    """Asked about pods whose terms can be parsed (`PodAffinityPlugin`)."""

    def __init__(self, state: FilterState) -> None:
        self._state = state
        self._filters: Shared[PodAntiAffinityFilter] = Shared(
            _SHAPES_KEPT, shape_weight, dropped=PodAntiAffinityFilter.close
        )

    def filter_for(self, pod: Pod, own: Placed | None) -> "PodAntiAffinityFilter | None":
        affinity, against = pod.spec.affinity, self._state.anti_affinity.about(pod)
        terms = required_terms(pod, affinity.pod_anti_affinity) if affinity is not None else ()
        if against is None and not terms:
            return None
        key: Hashable = tuple([each.key for each in terms]), against
        found = self._filters.get(
            key, pod.metadata.namespace, lambda: PodAntiAffinityFilter(self._state, terms, against)
        )
        self._state.groups.catch_up(found.counts)
        return found if own is None else found.without(own)

    def namespace_changed(self, before: Namespace | None, after: Namespace | None) -> None:
        """Resolve the namespace selectors again that see the change."""
        self._filters.drop(lambda each: each.sees(before, after))


class PodAntiAffinityFilter(RecomputedFilter):
    """The anti-affinity of pods of one shape, and that of other pods against them. Pods that are
    bound later can only help, so it holds in any order.
    """

    def __init__(
        self,
        state: FilterState,
        terms: tuple[AffinityTerm, ...],
        against: PodClass | None,
        own: Placed | None = None,
    ) -> None:
        super().__init__(names.NODE_POD_ANTI_AFFINITY)
        self._state = state
        self._terms = terms
        self._against = against
        self._own = own
        self.counts = acquire_each(state, terms)

    def close(self) -> None:
        """Release the counts; the filter must not be used any more."""
        for term in self._terms:
            release_pods(self._state, (term,))

    def sees(self, before: Namespace | None, after: Namespace | None) -> bool:
        """Return whether the change of a namespace changes the pods that the terms mean."""
        return any(each.selects_otherwise(before, after) for each in self._terms)

    def without(self, own: Placed) -> "PodAntiAffinityFilter":
        """Return the filter as if this pod counted nowhere. For use at once."""
        found = PodAntiAffinityFilter(self._state, self._terms, self._against, own)
        found.close()  # this filter holds the same counts
        return found

    def sentence(self, pod: Pod, row: int) -> str:
        state, node = self._state, self._state.nodes.node(row)
        for term, pods in zip(self._terms, self.counts, strict=True):
            if found := one_of(state, pods.pods(), node, term.topology_key, self._own):
                where = place_in_words(node, term.topology_key)
                other = state.pod_names.of(found, pod)
                return f"InterPodAffinity: {other} {where} has {term.words}, which the pod's anti-affinity excludes"
        for topology_key in self._against.counts_on(state.nodes) if self._against is not None else ():
            assert self._against is not None
            for term, placed in pods_with_terms(self._against, topology_key):
                if found := one_of(state, (placed,), node, topology_key, self._own):
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
        state, own, against = self._state, self._own, self._against
        refused: Bools = np.zeros(state.nodes.size, dtype=np.bool_)
        for term, pods in zip(self._terms, self.counts, strict=True):
            refused |= reached(state, without(pods, own), term.topology_key)
        if against is not None:
            for topology_key, column in against.columns_on(state.nodes, own).items():
                refused |= reached(state, column, topology_key)
        return refused
