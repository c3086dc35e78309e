"""Choice of Enflame GCUs: those that are closest to each other, or the one that others miss least.

Called by the vendor. In: the wiring of a node's cards and the free ones. Out: all sets, best first.
Pure. The measure is HAMi's pair score (`topology.pairs`): PCIe distance, and links where the tool
shows them.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations

import numpy as np

from hami_dra.api.arrays import Codes
from hami_dra.topology.pairs import Pairs, pairs
from hami_dra.topology.subsets import all_sets, bits, grown, mask_of, measure
from hami_dra.vendors import protocol
from hami_dra.vendors.preferences import Preferences, card_lists

DRIVER = "enflame.hami.io"
USE_UUID = "enflame.com/use-gpuuuid"
NOUSE_UUID = "enflame.com/nouse-gpuuuid"

_DAMAGE = 1e-6
"""Weight of a set's cost for the others relative to its own closeness: it only decides between equals."""


@lru_cache(maxsize=1_024)
def pairs_of(layout: protocol.Layout) -> Pairs:
    return pairs(layout.lanes, layout.distance, layout.group)


def closest(layout: protocol.Layout, free: int, count: int) -> Iterator[protocol.CandidateTier]:
    """Yield sets of `count` of the cards in `free` (bit mask): highest sum of pair scores first, then the least damage.

    Of a single card only the damage is left: the sum of its pair scores with the other free cards,
    the lowest first.
    """
    cards = bits(free)
    if len(cards) < count:
        return
    card_pairs = pairs_of(layout)
    sets = all_sets(cards, count)
    some = grown(card_pairs, cards, count) if sets is None else sets
    measured = measure(card_pairs, some, cards)
    score = measured.total - _DAMAGE * measured.damage
    for value in np.unique(score)[::-1].tolist():
        yield protocol.CandidateTier(float(value), tuple(mask_of(each) for each in some[score == value].tolist()))
    # too many to evaluate: the promising ones were first, the others follow in any order
    if sets is None:
        seen = {mask_of(each) for each in some.tolist()}
        for each in combinations(cards, count):
            mask = mask_of(each)
            if mask not in seen:
                yield protocol.CandidateTier(0.0, (mask,))


class Enflame(protocol.Vendor):
    """The rules of `enflame.hami.io`."""

    name = "enflame"
    profile = protocol.DriverProfile(driver=DRIVER, parts="slices")
    always_arranges = True  # closeness is good for everybody
    annotations = frozenset({USE_UUID, NOUSE_UUID})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, [USE_UUID], [NOUSE_UUID]))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-enflame-{index}", f"{node}-GCU-{index}")

    def states(self, cards: protocol.Cards, ask: protocol.CardRequest) -> Codes:
        """1 where the request takes all of the card."""
        states: Codes = ((ask.memory >= cards.memory_total) & (ask.memory > 0)).astype(np.uint8)
        return states

    def arrange(self, node_view: protocol.NodeView) -> protocol.CandidateSets | None:
        """Prefer several GCUs that are close together, and a single one that does least damage.

        A slice is chosen by the device policy.
        """
        eligible = node_view.mask(protocol.CardState.ELIGIBLE)
        if node_view.count == 1 and not any(node_view.states):
            return None
        return protocol.CandidateSets(closest(node_view.layout, eligible, node_view.count))
