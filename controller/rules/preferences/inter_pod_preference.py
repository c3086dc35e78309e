"""Preferred inter-pod affinity and anti-affinity (kube-scheduler's InterPodAffinity, scoring.go).

A node's raw score is the sum, over the pods in its domains, of
- the weights of the pod's own preferred terms that they match, those of its anti-affinity negative;
- the weights of their preferred terms that match the pod, and 1 for each of their required affinity
  terms that does (hardPodAffinityWeight).

The lowest of the fitting nodes gets 0, the highest 100.
"""

from collections.abc import Sequence

import numpy as np

from controller.cluster.nodes.node_labels import NO_DOMAIN
from controller.cluster.nodes.nodes import Placed
from controller.cluster.pods.affinity_terms import WeightedTerm, affinity_problem, preferred_terms
from controller.cluster.pods.existing_terms import ExistingTerms, PodClass
from controller.rules.counted_shape import CountedShape, counted_by
from controller.rules.filter_state import FilterState
from controller.rules.preferences.score import MOST, PluginScore
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Pod


def inter_pod_score(state: FilterState, existing: ExistingTerms, pod: Pod, own: Placed | None) -> PluginScore | None:
    """Return the pod's score; None: neither the pod nor the pods that are there prefer anything, or
    a term of the pod cannot be parsed. `existing`: the weighted terms of the pods that count on
    nodes.
    """
    terms: tuple[WeightedTerm, ...] = ()
    if pod.spec.affinity is not None:
        if affinity_problem(pod):
            return None
        terms = preferred_terms(pod)
    toward = existing.about(pod)
    if toward is None and not terms:
        return None
    key = tuple([(each.term.key, each.weight) for each in terms]), toward
    shape = state.shapes.of(pod, "preferred pods", key, lambda: InterPodScore(state, terms, toward), len(terms))
    return shape.current(own).normalized


class InterPodScore(CountedShape):
    """The score of pods of one shape. `toward`: what the pods that are there prefer of them."""

    def __init__(self, state: FilterState, weighted: Sequence[WeightedTerm], toward: PodClass | None) -> None:
        terms = [each.term for each in weighted]
        super().__init__(state, [counted_by(state, (each,)) for each in terms], leaving=True, terms=terms)
        self._weighted = weighted
        self._toward = toward

    def normalized(self, fitting: Positions) -> Ints:
        raw = self._raw()[fitting]
        lowest = int(raw.min())
        span = int(raw.max()) - lowest
        if span == 0:
            return np.zeros(len(fitting), dtype=np.int64)
        scores: Ints = (MOST * ((raw - lowest) / span)).astype(np.int64)  # truncates like int64(fScore)
        return scores

    def _raw(self) -> Ints:
        nodes = self._state.nodes
        total: Ints = np.zeros(nodes.size, dtype=np.int64)
        for each, pods in zip(self._weighted, self.counts, strict=True):
            total += each.weight * self._per_domain(self._column(pods), each.term.topology_key)
        if self._toward is not None:
            for topology_key, weights in self._toward.columns_on(nodes, self._own).items():
                total += self._per_domain(weights, topology_key)
        return total

    def _per_domain(self, column: Ints, topology_key: str) -> Ints:
        """Return the sum over each node's domain, 0 where it has none."""
        domain = self._state.labels.domains(topology_key)
        # one line more for NO_DOMAIN, which is -1: its sum is no node's
        table = np.bincount(domain - NO_DOMAIN, weights=column, minlength=1).astype(np.int64)
        table[0] = 0
        summed: Ints = table[domain - NO_DOMAIN]
        return summed
