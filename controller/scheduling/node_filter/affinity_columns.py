"""What both directions of inter-pod affinity compute: counts spread over topology domains."""

from collections.abc import Hashable, Iterable

import numpy as np

from controller.scheduling.node_filter.affinity_terms import AffinityTerm
from controller.scheduling.node_filter.filter_state import FilterState
from controller.scheduling.node_filter.nodes import Placed
from controller.scheduling.node_filter.pod_groups import MatchingPods
from controller.scheduling.node_filter.topology_domains import NO_DOMAIN
from hami_dra.api.arrays import Bools, Ints
from hami_dra.api.core import Node


def acquire_pods(state: FilterState, terms: tuple[AffinityTerm, ...]) -> MatchingPods:
    """Return the count of the pods that match all terms; `release_pods` ends it."""
    pods = [state.pods_of(term) for term in terms]
    return state.groups.acquire(_key(terms), pods, leaving=True)


def acquire_each(state: FilterState, terms: Iterable[AffinityTerm]) -> list[MatchingPods]:
    """Return a count for each term; `release_pods` with that term alone ends it."""
    return state.groups.acquire_all([(_key((each,)), [state.pods_of(each)]) for each in terms], leaving=True)


def release_pods(state: FilterState, terms: tuple[AffinityTerm, ...]) -> None:
    state.groups.release(_key(terms))


def shape_weight(key: tuple[tuple[object, ...], object]) -> int:
    """Return what the filter or score of one shape of pods weighs in its cache: its terms or
    constraints, each of which has a count of pods. `key`: of the shape, these first.
    """
    return max(1, len(key[0]))


def _key(terms: tuple[AffinityTerm, ...]) -> Hashable:
    return "affinity", tuple([each.key for each in terms])


def without(counts: MatchingPods, own: Placed | None) -> Ints:
    """Return the matching pods per node, less this one."""
    return counts.column() if own is None else counts.without(own.node, counts.share_of(own))


def reached(state: FilterState, column: Ints, topology_key: str) -> Bools:
    """Return the nodes in whose domain something is counted. One table does it for all nodes:

    nodes n0 n1 n2 n3   zones a a b (none)   pods that match 0 1 0 0
    table  a: yes, b: no, none: no           reached  n0, n1
    """
    domain = state.domains.of(topology_key)
    table = np.zeros(int(domain.max(initial=NO_DOMAIN)) + 2, dtype=np.bool_)
    table[domain[column > 0]] = True
    table[NO_DOMAIN] = False  # the last entry
    found: Bools = table[domain]
    return found


def one_of(state: FilterState, pods: Iterable[Placed], node: Node, topology_key: str, own: Placed | None) -> str:
    """Return the key of one of these pods in the node's domain, or an empty text."""
    value = node.metadata.labels.get(topology_key)
    if value is None:
        return ""
    nodes = state.nodes
    for each in pods:
        row = nodes.index_of(each.node)
        if row >= 0 and each is not own and nodes.node(row).metadata.labels.get(topology_key) == value:
            return each.pod.key
    return ""
