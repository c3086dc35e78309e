"""Sets of cards: enumeration, tightness of each set, and the damage to the remaining cards.

Called by the vendors' rules. In: tables of `topology.pairs`. Out: arrays with one row per set.
Pure. Sets are arrays of positions, ascending, shape (k, n): k sets of n cards.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import comb
from typing import Final

import numpy as np
from msgspec import Struct

from hami_dra.api.arrays import Bools, Ints, Positions
from hami_dra.topology.islands import connected
from hami_dra.topology.pairs import Pairs

MOST_SETS: Final = comb(16, 8)
"""Up to this number of sets, all are evaluated; beyond it, only promising ones."""
_MOST_CLIQUES: Final = 4096
"""A machine has a handful; published data may be nonsense."""

Sets = Positions


class Measured(Struct, frozen=True, eq=False):
    """One entry per set, shape (k,)."""

    total: Ints
    """Sum of the pair scores inside the set."""
    damage: Ints
    """Sum of the pair scores between the set and the remaining cards: connections lost to later pods."""
    cliques: Bools
    """Every two cards of the set are linked."""


@lru_cache(maxsize=256)
def _combinations(size: int, count: int) -> Sets:
    flat = np.fromiter(chain.from_iterable(combinations(range(size), count)), dtype=np.intp)
    table = flat.reshape(-1, count)
    table.setflags(write=False)
    return table


def all_sets(free: Sequence[int], count: int) -> Sets | None:
    """Return every set of `count` (at least 1) free cards, ascending; None if there are too many."""
    if comb(len(free), count) > MOST_SETS:
        return None
    return np.array(free, dtype=np.intp)[_combinations(len(free), count)]


def measure(pairs: Pairs, sets: Sets, free: Sequence[int]) -> Measured:
    """Measure each set. `free`: all cards that could be taken; `sets` are chosen from them."""
    count = sets.shape[1]
    total = np.zeros(len(sets), dtype=np.int64)
    linked = np.ones(len(sets), dtype=np.bool_)
    for first in range(count):
        for second in range(first + 1, count):
            total += pairs.score[sets[:, first], sets[:, second]]
            linked &= pairs.linked[sets[:, first], sets[:, second]]
    to_free = pairs.score[:, np.array(free, dtype=np.intp)].sum(axis=1)
    return Measured(total=total, damage=to_free[sets].sum(axis=1) - 2 * total, cliques=linked)


def components(pairs: Pairs, free: Sequence[int]) -> dict[int, int]:
    """Return free card → number of free cards in its island, itself included.

    An island is a group connected by links; 1: the card has none.
    """
    linked = {card: {peer for peer in free if pairs.linked[card][peer]} for card in free}
    return {card: len(island) for island in connected(linked) for card in island}


def cliques(pairs: Pairs, free: Sequence[int], least: int) -> list[int]:
    """Return the maximal groups of at least `least` free, mutually linked cards, as bit masks.

    Every set of linked cards is part of one of them. They are ordered by their lowest cards. At
    most `_MOST_CLIQUES` steps are made (Bron and Kerbosch, with pivot); the search in a graph with
    more cliques stops there.
    """
    allowed = sum(1 << card for card in free)
    neighbours = {
        card: sum(1 << int(peer) for peer in np.flatnonzero(pairs.linked[card])) & allowed & ~(1 << card)
        for card in free
    }
    found: list[int] = []
    steps = 0
    stack = [(0, allowed, 0)]
    while stack and steps < _MOST_CLIQUES:
        steps += 1
        chosen, may, done = stack.pop()
        if chosen.bit_count() + may.bit_count() < least:
            continue
        if not may:
            if not done:
                found.append(chosen)
            continue
        pivot = max(bits(may | done), key=lambda card: (may & neighbours[card]).bit_count())
        for card in bits(may & ~neighbours[pivot]):
            stack.append((chosen | 1 << card, may & neighbours[card], done & neighbours[card]))
            may &= ~(1 << card)
            done |= 1 << card
    return sorted(found, key=lambda mask: tuple(bits(mask)))


def grown(pairs: Pairs, free: Sequence[int], count: int) -> Sets:
    """Return promising sets when there are too many to evaluate: from each card, greedily add the best.

    The best is the card that adds the highest score; ties go to the lower card. At most one set per
    starting card, ascending, without duplicates; shape (k, count).
    """
    members = np.array(free, dtype=np.intp)
    found = set()
    for start in members.tolist():
        chosen = [start]
        gain = pairs.score[start].copy()
        while len(chosen) < count:
            left = members[~np.isin(members, chosen)]
            best = int(left[np.argmax(gain[left])])
            chosen.append(best)
            gain += pairs.score[best]
        found.add(tuple(sorted(chosen)))
    return np.array(sorted(found), dtype=np.intp).reshape(-1, count)


def bits(mask: int) -> list[int]:
    """Return the positions of the ones, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Return the runs of consecutive numbers.

    >>> runs([0, 1, 2, 5, 7, 8])
    [[0, 1, 2], [5], [7, 8]]
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def mask_of(cards: Sequence[int]) -> int:
    return sum(1 << card for card in cards)
