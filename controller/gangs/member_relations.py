"""Members that make each other fit: by required pod affinity, or by hard topology spread. Pure.

Kubernetes places a worker that must run near the leader once the leader is there, and the third pod
of an uneven spread once the second is. So what such terms refuse at first says nothing about the
gang, and who is referred to is placed first.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from controller.cluster.pods.affinity_terms import AffinityTerm, InvalidTerm, required_terms
from controller.gangs.domains import MOST_KINDS
from controller.gangs.gang_members import Member, has_terms
from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import NUMBERS
from controller.rules import is_hard
from controller.rules.pod_topology_spread import SpreadConstraint
from hami_dra.api.arrays import Bools, Codes
from hami_dra.api.core import Pod
from hami_dra.api.selectors import selector_problem

_LIFTED = (NUMBERS[catalogue.NODE_TOPOLOGY_SPREAD], NUMBERS[catalogue.NODE_POD_AFFINITY])


class MemberRelations:
    """The terms of the members of one gang that match members. With more than `MOST_KINDS` kinds each
    term counts as one that does.
    """

    def __init__(self, inventory: Inventory, members: Sequence[Member]) -> None:
        self._inventory = inventory
        samples = {member.kind: member.request.pod for member in reversed(members)}
        self._samples = samples if len(samples) <= MOST_KINDS else {}
        self.exist = any(map(has_terms, samples.values()))
        """Whether the order of placing matters."""

    def lifted(self, pod: Pod, codes: Codes) -> Bools:
        """Return the nodes that members may make fit. `codes`: of `NodeFilter`. Shape (nodes.size,)."""
        if not self._waits_for_members(pod):
            return np.zeros(len(codes), dtype=np.bool_)
        # A plugin after these may refuse the node, too; they only make the count less tight.
        return np.isin(codes, _LIFTED)

    def ordered(self, kinds: Sequence[int]) -> list[int]:
        """Return the kinds in this order, but each after those that its affinity refers to."""
        if not self.exist or not self._samples:
            return [*kinds]
        behind: Mapping[int, set[int]] = {
            kind: {other for other in kinds if other != kind and self._refers_to(kind, other)} for kind in kinds
        }
        waiting, found = [*kinds], list[int]()
        while waiting:
            free = next((kind for kind in waiting if behind[kind] <= {*found}), waiting[0])
            waiting.remove(free)
            found.append(free)
        return found

    def _refers_to(self, kind: int, other: int) -> bool:
        terms = _terms_of(self._samples[kind])
        return bool(terms) and self._matches(terms, self._samples[other])

    def _waits_for_members(self, pod: Pod) -> bool:
        if not has_terms(pod):
            return False
        if not self._samples:
            return True
        terms = _terms_of(pod)
        if terms and any(self._matches(terms, other) for other in self._samples.values()):
            return True
        hard = [each for each in pod.spec.topology_spread_constraints if is_hard(each)]
        selectors = [
            SpreadConstraint.of(pod, each).selector for each in hard if not selector_problem(each.label_selector)
        ]
        return any(
            each is not None and each.matches(other.metadata.labels)
            for each in selectors
            for other in self._samples.values()
        )

    def _matches(self, terms: Sequence[AffinityTerm], other: Pod) -> bool:
        meta = other.metadata
        namespace = self._inventory.namespaces.get(meta.namespace)
        labels = namespace.metadata.labels if namespace is not None else {}
        return all(term.matches(meta.namespace, labels, meta.labels) for term in terms)


def _terms_of(pod: Pod) -> tuple[AffinityTerm, ...]:
    affinity = pod.spec.affinity
    try:
        return required_terms(pod, affinity.pod_affinity if affinity is not None else None)
    except InvalidTerm:
        return ()
