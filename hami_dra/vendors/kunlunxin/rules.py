"""Kunlunxin's rules: the slicing of cards, the handles that it takes, and the legal sets of cards.

Called by the vendor. In: columns of cards and the request, or one node as a `NodeView`. Out:
reasons, sets best first. Pure. Sources: HAMi D/kunlun/vdevice.go (sizes), topo.go (sets, node
score), docs/kunlun-vxpu-support.md:195 (handles). Everything about slices follows from the usage: a
card's size is that of the slices on it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, groupby, islice
from typing import Final, NamedTuple

import numpy as np

from hami_dra.api import names
from hami_dra.api.arrays import Codes, Ints
from hami_dra.topology.subsets import MOST_SETS, bits
from hami_dra.topology.wings import Board, Choice, Stage, board, bubble, choices
from hami_dra.vendors import core_rules, device_codes, protocol
from hami_dra.vendors.device_codes import NUMBER
from hami_dra.vendors.preferences import Preferences, card_lists

DRIVER = "kunlunxin.hami.io"
USE_UUIDS = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
NOUSE_UUIDS = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")

HANDLES: Final = 32
"""Number of handles of a node's driver. Each card takes one, and each part of a sliced card, used or not, another."""
_POINTS: Final = {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}
"""HAMi's node score by how much more torn the chosen cards are than those in use; any other difference: as for 1."""
_STATE: Final = 8
"""A state is `_STATE` x present parts of the card (0: idle) + parts that the request would cut it into."""


def parts(memory: Ints, total: Ints) -> Codes:
    """Return the slices of this size that a card holds: 4, 2 or 1, the size being aligned up (HAMi
    trimMemory). Arrays of one shape.

    A card without a memory figure is not sliced: 1.
    """
    found = np.where(4 * memory <= total, 4, np.where(2 * memory <= total, 2, 1))
    return np.where(total > 0, found, 1).astype(np.uint8)


def parts_now(cards: protocol.Cards) -> Codes:
    """Return the parts that each card is cut into by its holders, 0 for an idle one. Shape (n,)."""
    holders = np.maximum(cards.slots_used, 1)
    now = parts(cards.memory_used, cards.memory_total * holders)
    return np.where(cards.slots_used > 0, now, 0).astype(np.uint8)


@lru_cache(maxsize=1_024)
def board_of(layout: protocol.Layout) -> Board:
    return board(layout.index, layout.group, layout.lanes)


class _Handles(NamedTuple):
    costs: tuple[int, ...]
    """By position: handles that the request needs if it takes the card. A card that is sliced already has them."""
    left: int

    def suffice(self, cards: int) -> bool:
        cost = sum(self.costs[card] for card in bits(cards))
        return not cost or cost <= self.left


def _handles(node_view: protocol.NodeView) -> _Handles:
    slicing = [divmod(state, _STATE) for state in node_view.states]
    taken = node_view.layout.size + sum(now for now, _ in slicing if now > 1)
    return _Handles(tuple(wanted if wanted > 1 and not now else 0 for now, wanted in slicing), HANDLES - taken)


def _legal(node_view: protocol.NodeView, view: Board, eligible: int, handles: _Handles) -> Iterator[Choice]:
    """Yield the legal sets. A card without enough handles is left out."""
    free = sum(1 << card for card in bits(eligible) if handles.suffice(1 << card))
    found = _slices(node_view, view, free) if _slicing(node_view, free) else choices(view, free, node_view.count)
    for choice in found:
        if held := tuple(cards for cards in choice.sets if handles.suffice(cards)):
            yield choice._replace(sets=held)


def _slices(node_view: protocol.NodeView, view: Board, free: int) -> Iterator[Choice]:
    """Yield the cards for a slice. Between two equal wings the device policy decides.

    One slice on a card that is sliced already breaks up no wing. So the policy decides whether it
    goes there, and HAMi's preference among the wings says which idle card is cut.
    """
    if node_view.count > 1:
        yield from _alike_together(choices(view, free, node_view.count))
        return
    cut = sum(1 << card for card in bits(free) if node_view.states[card] // _STATE)
    policy = node_view.device_keys[0]
    if policy == names.NUMA:
        cut = free
    joining = [Choice(Stage.WING, 0, tuple(1 << card for card in bits(cut)))] if cut else []
    cutting = _alike_together(choices(view, free & ~cut, 1))
    yield from chain(joining, cutting) if policy == names.BINPACK else chain(cutting, joining)


def _alike_together(found: Iterable[Choice]) -> Iterator[Choice]:
    for (stage, rank), node_class in groupby(found, key=lambda choice: (choice.stage, choice.rank)):
        yield Choice(stage, rank, tuple(cards for choice in node_class for cards in choice.sets))


def _near(legal: Iterable[Choice], view: Board, own: int) -> Iterator[Choice]:
    """Yield sets with most cards of `own` first, then with most in the wings of `own`, then as before."""
    near = view.wings_of(own)
    listed = [
        (choice.stage, -(cards & own).bit_count(), -(cards & near).bit_count(), number, cards)
        for number, choice in enumerate(islice(legal, MOST_SETS))
        for cards in choice.sets
    ]
    listed.sort(key=lambda entry: entry[:-1])
    for (stage, _, _, number), group in groupby(listed, key=lambda entry: entry[:-1]):
        yield Choice(stage, number, tuple(cards for *_, cards in group))


def _tiers(node_view: protocol.NodeView, view: Board, found: Iterable[Choice]) -> Iterator[protocol.CandidateTier]:
    for choice in found:
        by_score: dict[float, list[int]] = {}
        for cards in choice.sets:
            by_score.setdefault(_score(node_view, view, cards), []).append(cards)
        for score in sorted(by_score, reverse=True):
            yield protocol.CandidateTier(score, sets=tuple(by_score[score]))


def _slicing(node_view: protocol.NodeView, cards: int) -> bool:
    return any(node_view.states[card] % _STATE > 1 for card in bits(cards))


def _score(node_view: protocol.NodeView, view: Board, cards: int) -> float:
    """Return HAMi's node score of whole cards; it adds up over the requests of a pod. Slices have none."""
    if _slicing(node_view, cards):
        return 0.0
    own = sum(
        1 << card for card in bits(node_view.mask(protocol.CardState.OWN)) if node_view.states[card] // _STATE <= 1
    )
    before = bubble(view, ((1 << node_view.layout.size) - 1) & ~node_view.mask(protocol.CardState.IDLE) & ~own)
    so_far = _points(bubble(view, own) - before) if own else 0.0
    return _points(bubble(view, own | cards) - before) - so_far


def _points(difference: int) -> float:
    return _POINTS.get(difference, _POINTS[1])


class Kunlunxin(protocol.Vendor):
    """The rules of `kunlunxin.hami.io`."""

    name = "kunlunxin"
    profile = protocol.DriverProfile(driver=DRIVER, ids=(names.ATTR_PCI_BUS_ID,))
    always_arranges = True  # wings are for everybody
    annotations = frozenset({*USE_UUIDS, *NOUSE_UUIDS})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, USE_UUIDS, NOUSE_UUIDS))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-kunlun-{index}",)

    def refuse(self, cards: protocol.Cards, ask: protocol.CardRequest, preferences: Preferences) -> Codes:  # noqa: ARG002 (amounts alone decide)
        """Return per card 0 or the number of the reason. In addition to the general rules for cores:

        - A whole card is an idle one.
        - A card is cut into slices of one size, and into no more than it holds.
        """
        codes = core_rules.refuse(cards, ask)
        wanted, now = parts(ask.memory, cards.memory_total), parts_now(cards)
        held = now > 0
        for wrong, reason in (
            (held & (wanted == 1), device_codes.EXCLUSIVE_CONFLICT),
            (held & (wanted != now), device_codes.MODE_NOT_FIT),
            (held & (cards.slots_used >= now), device_codes.CARD_TIME_SLICING_EXHAUSTED),
        ):
            codes[wrong & (codes == 0)] = NUMBER[reason]
        return codes

    def states(self, cards: protocol.Cards, ask: protocol.CardRequest) -> Codes:
        """Return the state of each card for `arrange`, as described at `_STATE`.

        Shape (n,); the second half is meaningless for cards without a request.
        """
        found: Codes = parts_now(cards) * np.uint8(_STATE) + parts(ask.memory, cards.memory_total)
        return found

    def arrange(self, node_view: protocol.NodeView) -> protocol.CandidateSets:
        """Return all legal sets: those that the wings allow and that leave enough handles.

        Cards that an earlier request of the pod is on come first, then those in the same wing, among
        sets that lie alike.
        """
        view, handles = board_of(node_view.layout), _handles(node_view)
        eligible, own = node_view.mask(protocol.CardState.ELIGIBLE), node_view.mask(protocol.CardState.OWN)
        legal = _legal(node_view, view, eligible, handles)
        tiers = _tiers(node_view, view, _near(legal, view, own) if own else legal)
        best = next(tiers, None)
        if best is None:
            possible = next(choices(view, eligible, node_view.count), None) is not None
            return protocol.CandidateSets(
                (), device_codes.NODE_HANDLES_EXHAUSTED if possible else device_codes.NUMA_NOT_FIT
            )
        return protocol.CandidateSets(chain([best], tiers))
