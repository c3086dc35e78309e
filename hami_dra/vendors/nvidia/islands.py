"""Legal sets of NVIDIA cards and their scores: NVLink islands, pair scores, NUMA nodes.

Called by `Nvidia.arrange`. In: a node view. Out: tiers of sets, best first. Pure.

An island is a group joined by NVLink among the cards that the request may take now: a group of
eight with four taken is an island of four. Order of sets with device policy `topology-aware`,
several cards:

1. sets whose cards NVLink joins pairwise, before all others; a. those that leave fewest cards of
   their island over: an island that fits exactly, then the next larger one; b. of these the highest
   sum of pair scores; c. of these the least damage: links to the cards that stay free;
2. all others by highest sum of pair scores, then least damage.

HAMi uses only the sum; the rule that an exactly fitting island comes before splitting a larger one
is from its release notes. One card: cards in no island first, then the lowest sum of pair scores to
the other free cards (HAMi D/nvidia/device.go:850).

The score of a node repeats the order, without the damage: between nodes whose choice is equally
good, binpack or spread decides, and the damage only between nodes that are equal by that too.

With any device policy, `hami.io/gpu-topology: required` leaves only the sets of 1, and
`nvidia.com/numa-bind` only sets on one NUMA node. Requests for all devices of a node have no choice
and are not arranged.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from hami_dra.api import names
from hami_dra.api.arrays import Ints
from hami_dra.topology.pairs import Pairs, pairs
from hami_dra.topology.subsets import Sets, all_sets, bits, cliques, components, grown, mask_of, measure
from hami_dra.vendors import device_codes
from hami_dra.vendors.nvidia.preferences import NvidiaPreferences
from hami_dra.vendors.protocol import CandidateSets, CandidateTier, CardState, Layout, NodeView, PartitionUse

LINKED: Final = 1e9
"""Score of a set that NVLink joins pairwise, before the deduction for leftover cards."""
LEFT_OVER: Final = 2e6
"""Per card that an island is larger than needed: more than any sum of pair scores (496 pairs of 32
cards, 3,560 each).
"""

_ONE: Final = 1
_WORD: Final = 63
"""Bits of a mask that an int64 holds."""


@lru_cache(maxsize=4096)
def pairs_of(layout: Layout) -> Pairs:
    """Return the pair scores of a machine; equal machines share one layout."""
    return pairs(layout.lanes, layout.distance, layout.group)


def arrange(node_view: NodeView, preferences: NvidiaPreferences, *, topology_aware: bool) -> CandidateSets | None:
    """Return the sets; None if any set will do, in order of the device policy."""
    linked = preferences.linked and node_view.count > _ONE
    if not (linked or preferences.numa_bind or topology_aware):
        return None
    free = bits(node_view.mask(CardState.ELIGIBLE))
    card_pairs = pairs_of(node_view.layout)
    groups = _numa_groups(node_view, free) if preferences.numa_bind else [free]
    groups = [group for group in groups if len(group) >= node_view.count]
    if topology_aware:
        tiers = _by_topology(card_pairs, groups, free, node_view.count, linked=linked)
    else:
        tiers = _by_policy(card_pairs, groups, node_view.count, linked=linked)
    refusal = device_codes.ALLOCATED_CARDS_INSUFFICIENT
    if linked and (not preferences.numa_bind or not cliques(card_pairs, free, node_view.count)):
        refusal = device_codes.TOPOLOGY_NOT_FIT
    elif len(free) >= node_view.count:
        refusal = device_codes.NUMA_NOT_FIT
    parts = PartitionUse.ONE_NUMA_NODE if preferences.numa_bind else PartitionUse.ANY
    return CandidateSets(tiers, refusal, PartitionUse.NO if linked else parts)


def _numa_groups(node_view: NodeView, free: Sequence[int]) -> list[list[int]]:
    """Return free cards by NUMA node, in HAMi's order under numa-bind
    (S/policy/gpu_policy.go:77-127, which is read from its end).

    binpack: lowest node first; spread and topology-aware: highest first; lists of policies: lowest
    first.
    """
    groups: dict[int, list[int]] = {}
    for card in free:
        groups.setdefault(node_view.layout.numa[card], []).append(card)
    downwards = node_view.device_keys in {(names.SPREAD,), (names.TOPOLOGY_AWARE,)}
    return [groups[node] for node in sorted(groups, reverse=downwards)]


def _by_policy(
    card_pairs: Pairs, groups: Sequence[Sequence[int]], count: int, *, linked: bool
) -> Iterator[CandidateTier]:
    """Yield one tier per NUMA node, or one for all: the device policy chooses, and does not rank nodes."""
    for group in groups:
        pools = cliques(card_pairs, group, count) if linked else [mask_of(group)]
        if pools:
            yield CandidateTier(0.0, pools=tuple(pools))


def _by_topology(
    card_pairs: Pairs, groups: Sequence[Sequence[int]], free: Sequence[int], count: int, *, linked: bool
) -> Iterator[CandidateTier]:
    """Yield tiers by topology. Among equally good sets, those of an earlier group come first."""
    if count == _ONE:
        yield from _single(card_pairs, groups, free)
        return
    listed: list[Sets] = []
    rest: list[int] = []
    for group in groups:
        sets = all_sets(group, count)
        if sets is None:
            # too many to evaluate: promising ones first, then those preferred by the device policy
            inside = cliques(card_pairs, group, count)
            listed += [grown(card_pairs, bits(clique), count) for clique in inside]
            if not linked:
                listed.append(grown(card_pairs, group, count))
            rest += inside if linked else [mask_of(group)]
        else:
            listed.append(sets)
    if listed:
        number = np.repeat(np.arange(len(listed)), [len(sets) for sets in listed])
        yield from _several(card_pairs, np.concatenate(listed), number, free, linked=linked)
    if rest:
        yield CandidateTier(0.0, pools=tuple(rest))


def _single(card_pairs: Pairs, groups: Sequence[Sequence[int]], free: Sequence[int]) -> Iterator[CandidateTier]:
    sizes = components(card_pairs, free)
    sums = card_pairs.score[:, np.array(free, dtype=np.intp)].sum(axis=1).tolist() if free else []
    ordered: dict[tuple[bool, int, int], list[int]] = {}
    for number, group in enumerate(groups):
        for card in group:
            ordered.setdefault((sizes[card] > 1, sums[card], number), []).append(card)
    for (in_island, total, _), cards in sorted(ordered.items()):
        score = -float(total) if in_island else 0.0
        yield CandidateTier(score, tie=-float(total), sets=tuple(1 << card for card in cards))


def _several(
    card_pairs: Pairs, sets: Sets, group: Ints, free: Sequence[int], *, linked: bool
) -> Iterator[CandidateTier]:
    """Yield tiers of several cards. `group`: int64 per set, the place of its NUMA node."""
    measured = measure(card_pairs, sets, free)
    sizes = components(card_pairs, free)
    island = np.zeros(card_pairs.size, dtype=np.int64)
    for card, size in sizes.items():
        island[card] = size
    left_over = np.where(measured.cliques, island[sets[:, 0]] - sets.shape[1], 0)
    keys = (~measured.cliques, left_over, -measured.total, measured.damage, group)
    order = np.lexsort(keys[::-1])
    if linked:
        order = order[measured.cliques[order]]
    columns = np.stack([key[order].astype(np.int64) for key in keys])
    starts = np.flatnonzero((np.diff(columns, axis=1, prepend=columns[:, :1] - 1) != 0).any(axis=0))
    masks = _masks(sets[order])
    for start, end in pairwise([*starts.tolist(), len(order)]):
        first = order[start]
        score = float(measured.total[first])
        if measured.cliques[first]:
            score += LINKED - LEFT_OVER * float(left_over[first])
        yield CandidateTier(score, tie=-float(measured.damage[first]), sets=masks[start:end])


def _masks(sets: Sets) -> tuple[int, ...]:
    if sets.size and int(sets.max()) >= _WORD:
        return tuple(map(mask_of, sets.tolist()))
    return tuple(np.left_shift(np.int64(1), sets).sum(axis=1).tolist())
