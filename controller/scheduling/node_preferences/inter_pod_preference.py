"""Preferred inter-pod affinity and anti-affinity (kube-scheduler's InterPodAffinity, scoring.go).

A node's raw score is the sum, over the pods in its domains, of
- the weights of the pod's own preferred terms that they match, those of its anti-affinity negative;
- the weights of their preferred terms that match the pod, and 1 for each of their required affinity
  terms that does (hardPodAffinityWeight).

The lowest of the fitting nodes gets 0, the highest 100.
"""

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import LruCache
from controller.scheduling.node_filter.affinity_terms import (
    WeightedTerm,
    affinity_problem,
    preferred_terms,
)
from controller.scheduling.node_filter.existing_terms import ExistingTerms, PodClass
from controller.scheduling.node_filter.filter_state import FilterState
from controller.scheduling.node_filter.node_counts import NodeCounts
from controller.scheduling.node_filter.nodes import Placed
from controller.scheduling.node_filter.topology_domains import NO_DOMAIN
from controller.scheduling.node_preferences.score import MOST
from hami_dra.api.arrays import Ints, Positions
from hami_dra.api.core import Pod

_SHAPES_KEPT: Final = 128


class InterPodPreference:
    """`existing`: the weighted terms of the pods that count on nodes."""

    def __init__(self, state: FilterState, existing: ExistingTerms) -> None:
        self._state = state
        self._existing = existing
        self._scores: LruCache[InterPodScore] = LruCache(_SHAPES_KEPT, lambda each: each.close())

    def score_for(self, pod: Pod, own: Placed | None) -> "InterPodScore | None":
        """Return the pod's score; None: neither the pod nor the pods that are there prefer anything,
        or a term of the pod cannot be parsed.
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
        found = self._scores.get(key, lambda: InterPodScore(self._state, terms, toward))
        return found if own is None else found.without(own)

    def namespaces_changed(self) -> None:
        """Resolve the namespace selectors of all terms again."""
        self._existing.namespaces_changed()
        self._scores.clear()


class InterPodScore:
    """The score of pods of one shape. `toward`: what the pods that are there prefer of them."""

    def __init__(
        self, state: FilterState, terms: Sequence[WeightedTerm], toward: PodClass | None, own: Placed | None = None
    ) -> None:
        self._state = state
        self._terms = terms
        self._toward = toward
        self._own = own
        self._counts = [
            state.groups.acquire(_counts_key(each), [state.pods_of(each.term)], leaving=True) for each in terms
        ]

    def close(self) -> None:
        """Release the counts; the score must not be used any more."""
        for each in self._terms:
            self._state.groups.release(_counts_key(each))

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
        own, toward = self._own, self._toward
        total: Ints = np.zeros(self._state.nodes.size, dtype=np.int64)
        for each, counts in zip(self._terms, self._counts, strict=True):
            share = counts.share_of(own) if own is not None else 0
            total += each.weight * self._per_domain(counts, share, each.term.topology_key)
        for topology_key, weights in toward.counts_on(self._state.nodes).items() if toward is not None else ():
            assert toward is not None
            share = toward.share_of(own, topology_key) if own is not None else 0
            total += self._per_domain(weights, share, topology_key)
        return total

    def _per_domain(self, counts: NodeCounts, share: int, topology_key: str) -> Ints:
        """Return the sum over each node's domain, 0 where it has none. `share`: the pod's own part."""
        column = counts.column() if self._own is None else counts.without(self._own.node, share)
        domain = self._state.domains.of(topology_key)
        # one line more for NO_DOMAIN, which is -1: its sum is no node's
        table = np.bincount(domain - NO_DOMAIN, weights=column, minlength=1).astype(np.int64)
        table[0] = 0
        summed: Ints = table[domain - NO_DOMAIN]
        return summed


def _counts_key(weighted: WeightedTerm) -> Hashable:
    return "preferred", weighted.term.key
