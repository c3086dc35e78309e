"""What a rule says of nodes for pods of one shape, by counts of other pods in topology domains.
Required and preferred affinity between pods and topology spread are of this kind.
"""

from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from typing import Self

import numpy as np

from controller.cluster.nodes.node_labels import NO_DOMAIN
from controller.cluster.nodes.nodes import Placed
from controller.cluster.pods.affinity_terms import AffinityTerm
from controller.cluster.pods.pod_groups import MatchingPods, PodSelector
from controller.cluster.pods.pod_shapes import SeesPods
from controller.rules.filter_state import FilterState
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Namespace, Node

Counted = tuple[Hashable, Sequence[PodSelector]]
"""A key, equal for equal selectors, and the selectors that the counted pods all match."""


class CountedShape(SeesPods):
    """`counted`: the pods of each count, held until `close`; `leaving`: also those being deleted.
    `terms`: those whose namespace selectors decide which pods that are.
    """

    def __init__(
        self, state: FilterState, counted: Sequence[Counted], *, leaving: bool, terms: Sequence[AffinityTerm] = ()
    ) -> None:
        self._state = state
        self._own: Placed | None = None
        self._terms = terms
        self._seen: object = None
        """Versions of what was read last."""
        self._keys = [key for key, _ in counted]
        self.counts = state.groups.acquire_all(counted, leaving=leaving)

    def close(self) -> None:
        for key in self._keys:
            self._state.groups.release(key)

    def sees(self, before: Namespace | None, after: Namespace | None) -> bool:
        return any(each.selects_otherwise(before, after) for each in self._terms)

    def current(self, own: Placed | None) -> Self:
        """Return it with current counts; `own`: as if this pod counted nowhere, for use at once."""
        self._state.groups.catch_up(self.counts)
        if own is None:
            return self
        apart = copy(self)
        apart._own, apart._seen = own, None  # noqa: SLF001 (a copy of this)
        return apart

    def _column(self, counts: MatchingPods) -> Ints:
        own = self._own
        return counts.column() if own is None else counts.without(own.node, counts.share_of(own))

    def _reached(self, column: Ints, topology_key: str) -> Bools:
        """Return the nodes in whose domain something is counted. One table does it for all nodes:

        nodes n0 n1 n2 n3   zones a a b (none)   pods that match 0 1 0 0
        table  a: yes, b: no, none: no           reached  n0, n1
        """
        domain = self._state.labels.domains(topology_key)
        table = np.zeros(int(domain.max(initial=NO_DOMAIN)) + 2, dtype=np.bool_)
        table[domain[column > 0]] = True
        table[NO_DOMAIN] = False  # the last entry
        reached: Bools = table[domain]
        return reached

    def _one_of(self, pods: Iterable[Placed], node: Node, topology_key: str) -> str:
        """Return the key of one of these pods in the node's domain, or an empty text."""
        nodes, value = self._state.nodes, node.metadata.labels.get(topology_key)
        if value is None:
            return ""
        for each in pods:
            row = nodes.index_of(each.node)
            if row >= 0 and each is not self._own and nodes.node(row).metadata.labels.get(topology_key) == value:
                return each.pod.key
        return ""


def counted_by(state: FilterState, terms: Sequence[AffinityTerm]) -> Counted:
    return ("affinity", tuple([each.key for each in terms])), [state.pods_of(each) for each in terms]
