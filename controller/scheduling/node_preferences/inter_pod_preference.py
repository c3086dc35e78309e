"""Preferred inter-pod affinity and anti-affinity (kube-scheduler's InterPodAffinity, scoring.go).

A node's raw score is the sum, over the pods in its domains, of
- the weights of the pod's own preferred terms that they match, those of its anti-affinity negative;
- the weights of their preferred terms that match the pod, and 1 for each of their required affinity
  terms that does (hardPodAffinityWeight).

The lowest of the fitting nodes gets 0, the highest 100.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import Shared
from controller.scheduling.node_filter.affinity_columns import acquire_each, release_pods, shape_weight, without
from controller.scheduling.node_filter.affinity_terms import (
    WeightedTerm,
    affinity_problem,
    preferred_terms,
)
from controller.scheduling.node_filter.existing_terms import ExistingTerms, PodClass
from controller.scheduling.node_filter.filter_state import FilterState
from controller.scheduling.node_filter.nodes import Placed
from controller.scheduling.node_filter.topology_domains import NO_DOMAIN
from controller.scheduling.node_preferences.score import MOST
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Namespace, Pod

_SHAPES_KEPT: Final = 256
"""Terms of all shapes together."""


class InterPodPreference:
    """`existing`: the weighted terms of the pods that count on nodes."""

    def __init__(self, state: FilterState, existing: ExistingTerms) -> None:
        self._state = state
        self._existing = existing
        self._scores: Shared[InterPodScore] = Shared(_SHAPES_KEPT, shape_weight, dropped=InterPodScore.close)

    def score_for(self, pod: Pod, own: Placed | None) -> "InterPodScore | None":
        """Return the pod's score; None: neither the pod nor the pods that are there prefer
        anything, or a term of the pod cannot be parsed.
        """
        terms: tuple[WeightedTerm, ...] = ()
        if pod.spec.affinity is not None:
            if affinity_problem(pod):
                return None
            terms = preferred_terms(pod)
        toward = self._existing.about(pod)
        if toward is None and not terms:
            return None
        key = tuple([(each.term.key, each.weight) for each in terms]), toward
        found = self._scores.get(key, pod.metadata.namespace, lambda: InterPodScore(self._state, terms, toward))
        self._state.groups.catch_up(found.counts)
        return found if own is None else found.without(own)

    def namespace_changed(self, before: Namespace | None, after: Namespace | None) -> None:
        """Resolve the namespace selectors again that see the change."""
        self._scores.drop(lambda each: each.sees(before, after))


class InterPodScore:
    """The score of pods of one shape. `toward`: what the pods that are there prefer of them."""

    def __init__(
        self, state: FilterState, terms: Sequence[WeightedTerm], toward: PodClass | None, own: Placed | None = None
    ) -> None:
        self._state = state
        self._terms = terms
        self._toward = toward
        self._own = own
        self.counts = acquire_each(state, [each.term for each in terms])

    def close(self) -> None:
        """Release the counts; the score must not be used any more."""
        for each in self._terms:
            release_pods(self._state, (each.term,))

    def sees(self, before: Namespace | None, after: Namespace | None) -> bool:
        """Return whether the change of a namespace changes the pods that the terms mean."""
        return any(each.term.selects_otherwise(before, after) for each in self._terms)

    def without(self, own: Placed) -> "InterPodScore":
        """Return the score as if this pod counted nowhere. For use at once."""
        found = InterPodScore(self._state, self._terms, self._toward, own)
        found.close()  # this score holds the same counts
        return found

    def normalized(self, fitting: Positions) -> Ints:
        raw = self._raw()[fitting]
        lowest = int(raw.min())
        span = int(raw.max()) - lowest
        if span == 0:
            return np.zeros(len(fitting), dtype=np.int64)
        scores: Ints = (MOST * ((raw - lowest) / span)).astype(np.int64)  # truncates like int64(fScore)
        return scores

    def _raw(self) -> Ints:
        nodes, own = self._state.nodes, self._own
        total: Ints = np.zeros(nodes.size, dtype=np.int64)
        for each, pods in zip(self._terms, self.counts, strict=True):
            total += each.weight * self._per_domain(without(pods, own), each.term.topology_key)
        if self._toward is not None:
            for topology_key, weights in self._toward.columns_on(nodes, own).items():
                total += self._per_domain(weights, topology_key)
        return total

    def _per_domain(self, column: Ints, topology_key: str) -> Ints:
        """Return the sum over each node's domain, 0 where it has none."""
        domain = self._state.domains.of(topology_key)
        # one line more for NO_DOMAIN, which is -1: its sum is no node's
        table = np.bincount(domain - NO_DOMAIN, weights=column, minlength=1).astype(np.int64)
        table[0] = 0
        summed: Ints = table[domain - NO_DOMAIN]
        return summed
