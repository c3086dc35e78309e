"""Which Enflame GCUs to take: those that are closest to each other, or the one that others miss least.

Called by the vendor. In: the wiring of a node's cards and who is free. Out: all sets, best first. Pure.
The measure is HAMi's pair score (`topology.pairs`): PCIe distance, and links where the tool shows them.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import numpy as np

from hami_dra.api.arrays import Ints
from hami_dra.topology.pairs import Pairs, pairs
from hami_dra.topology.subsets import all_sets, bits, grown, mask_of, measure
from hami_dra.vendors.protocol import CandidateTier, Layout

_DAMAGE = 1e-6
"""Weight of what a set costs the others beside its own closeness: it only decides between equals."""


@lru_cache(maxsize=1_024)
def pairs_of(layout: Layout) -> Pairs:
    return pairs(layout.lanes, layout.distance, layout.group)


def closest(layout: Layout, free: int, count: int) -> Iterator[CandidateTier]:
    """Sets of `count` of the cards in `free` (bit mask): highest sum of pair scores first, then the least damage.

    Of a single card only the damage is left: the sum of its pair scores with the other free cards, the lowest first.
    """
    cards = bits(free)
    if len(cards) < count:
        return
    table = pairs_of(layout)
    sets = all_sets(cards, count)
    some = grown(table, cards, count) if sets is None else sets
    measured = measure(table, some, cards)
    yield from _tiers(some, measured.total, measured.damage)
    if sets is None:  # too many to look at: the promising ones were first, the others come as they are
        seen = {mask_of(each) for each in some.tolist()}
        for each in combinations(cards, count):
            mask = mask_of(each)
            if mask not in seen:
                yield CandidateTier(0.0, (mask,))


def _tiers(sets: Ints, total: Ints, damage: Ints) -> Iterator[CandidateTier]:
    score = total - _DAMAGE * damage
    for value in np.unique(score)[::-1].tolist():
        yield CandidateTier(float(value), tuple(mask_of(each) for each in sets[score == value].tolist()))
