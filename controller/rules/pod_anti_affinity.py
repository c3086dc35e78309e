"""Required anti-affinity between pods, in both directions (the second part of kube-scheduler's
InterPodAffinity, interpodaffinity/filtering.go).

A node is refused, in this order, because in its domain a pod runs that matches a term of this pod,
or one of whose terms matches this pod.
"""

from collections.abc import Hashable

import numpy as np

from controller.cluster.nodes.node_labels import place_in_words
from controller.cluster.nodes.nodes import Placed
from controller.cluster.pods.affinity_terms import AffinityTerm, required_terms
from controller.cluster.pods.existing_terms import PodClass, pods_with_terms
from controller.reasons import catalogue
from controller.rules.counted_shape import CountedShape, counted_by
from controller.rules.filter_state import FilterState
from controller.rules.plugin import RecomputedFilter
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod


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
