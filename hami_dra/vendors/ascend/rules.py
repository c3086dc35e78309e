"""The order of sets of Ascend NPUs: cards of one HCCS ring first (HAMi D/ascend/device.go:
computeBestCombination, ScoreNode).

Called by the vendor. In: one request and the cards of one node. Out: all sets, best first. Pure.

- The score of a set is HAMi's: 10 x the largest part of it in one ring / its cards.
- Among sets of equal score HAMi empties the ring with the most free cards first. Here the set that
  takes the least from idle rings comes first, so that these stay whole; among equal ones, the set
  that leaves the fewest free cards in its rings.
- A single card or vNPU is chosen by the device policy, as in HAMi.
- Several cards of a series whose chips share a module (910C) are whole modules, as in HAMi
  (computeBestCombination910C); a single card comes from a module that is already broken.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, islice, product
from math import prod
from typing import Final, NamedTuple

from hami_dra.topology.subsets import MOST_SETS, bits, mask_of
from hami_dra.vendors import device_codes, protocol
from hami_dra.vendors.ascend.models import series_of_product

DRIVER = "ascend.hami.io"
TEMPLATE = "template"
"""Attribute that only vNPUs carry: `vir05_1c_8g`."""
MODEL = "model"
"""Attribute that cards and vNPUs of a known series carry: `Ascend910B4`."""

_NETWORK_WEIGHT: Final = 10
"""HAMi's Ascend910NetworkWeight."""
_MOST_RINGS: Final = 8
"""A machine has one to four; published data may be wrong."""

Shape = tuple[int, ...]
"""How many cards a set has in each ring."""


class Ring(NamedTuple):
    """The cards that HCCS joins, as a bit mask."""

    free: int
    """Those that may be taken."""
    idle: bool
    """All of its cards may be taken."""

    @property
    def size(self) -> int:
        return self.free.bit_count()


class Module(NamedTuple):
    """The chips of one module that may be taken, as a bit mask."""

    free: int
    is_whole: bool
    """All of its chips may be taken."""


def arrange(node_view: protocol.NodeView) -> protocol.CandidateSets | None:
    """Return all sets of a request; None where the device policy alone decides."""
    eligible = node_view.mask(protocol.CardState.ELIGIBLE)
    modules = modules_of(node_view.layout, eligible)
    if modules:
        tiers = module_tiers(modules, node_view.layout, node_view.count)
        return protocol.CandidateSets(tiers, device_codes.ALLOCATED_CARDS_INSUFFICIENT, protocol.PartitionUse.ANY)
    if node_view.count == 1 or not all(node_view.layout.group):
        return None
    tiers = tiers_of(rings_of(node_view.layout, eligible), node_view.count)
    return protocol.CandidateSets(tiers, device_codes.ALLOCATED_CARDS_INSUFFICIENT, protocol.PartitionUse.ANY)


def modules_of(layout: protocol.Layout, cards: int) -> tuple[Module, ...]:
    """Return the modules that have some of these cards; nothing if each chip is a module."""
    members: dict[int, int] = {}
    for position in bits(cards):
        series = series_of_product(layout.product[position])
        if series is None or series.module == 1:
            return ()
        number = layout.index[position] // series.module
        members[number] = members.get(number, 0) | 1 << position
    whole = max((series.module for product in layout.product if (series := series_of_product(product))), default=1)
    return tuple(Module(mask, mask.bit_count() == whole) for _, mask in sorted(members.items()))


def module_tiers(modules: Sequence[Module], layout: protocol.Layout, count: int) -> Iterator[protocol.CandidateTier]:
    """Yield the sets: whole modules of one ring first; one card alone comes from a module that is not whole."""
    if count == 1:
        for is_whole in (False, True):
            singles = [1 << card for each in modules if each.is_whole is is_whole for card in bits(each.free)]
            if singles:
                yield protocol.CandidateTier(float(_NETWORK_WEIGHT), tuple(singles))
        return
    whole = [each.free for each in modules if each.is_whole]
    if not whole or count % whole[0].bit_count():
        return
    found: dict[float, list[int]] = {}
    for chosen in islice(combinations(whole, count // whole[0].bit_count()), MOST_SETS):
        rings = Counter(layout.group[card] for each in chosen for card in bits(each))
        found.setdefault(score(tuple(rings.values())), []).append(sum(chosen))
    for value, sets in sorted(found.items(), reverse=True):
        yield protocol.CandidateTier(value, tuple(sets))


def rings_of(layout: protocol.Layout, cards: int) -> tuple[Ring, ...]:
    """Return the rings that have some of these cards, in the order of their numbers."""
    members: dict[int, int] = {}
    for position, ring in enumerate(layout.group):
        members[ring] = members.get(ring, 0) | 1 << position
    found = ((members[ring], members[ring] & cards) for ring in sorted(members))
    return tuple(Ring(free, free == ring) for ring, free in found if free)


def tiers_of(rings: Sequence[Ring], count: int) -> Iterator[protocol.CandidateTier]:
    """Yield all sets of `count` cards, best first."""
    if sum(ring.size for ring in rings) < count:
        return
    if len(rings) > _MOST_RINGS:
        yield protocol.CandidateTier(0.0, pools=(sum(ring.free for ring in rings),))
        return
    ranked = sorted(shapes([ring.size for ring in rings], count), key=lambda shape: _rank(shape, rings))
    for (worse, _, _), alike in groupby(ranked, key=lambda shape: _rank(shape, rings)):
        yield _tier(-worse, rings, list(alike))


def shapes(sizes: Sequence[int], count: int) -> Iterator[Shape]:
    """Yield the ways to take `count` cards from rings with `sizes` free cards.

    >>> list(shapes((2, 1), 2))
    [(1, 1), (2, 0)]
    """
    if not sizes:
        if count == 0:
            yield ()
        return
    rest = sum(sizes[1:])
    for here in range(max(0, count - rest), min(sizes[0], count) + 1):
        for others in shapes(sizes[1:], count - here):
            yield here, *others


def score(shape: Shape) -> float:
    """Return HAMi's score of a set with this shape."""
    return _NETWORK_WEIGHT * max(shape) / sum(shape)


def _rank(shape: Shape, rings: Sequence[Ring]) -> tuple[float, int, int]:
    """Return the place of a shape, lowest first: its score, the cards of idle rings that it breaks,
    the free cards that it leaves in its rings.

    Two cards of an idle ring of four, one with three free cards and one with two come from the
    last: no ring is broken, and no card is left alone.
    """
    taken = [(here, ring) for here, ring in zip(shape, rings, strict=True) if here]
    return (
        -score(shape),
        sum(ring.size for _, ring in taken if ring.idle),
        sum(ring.size - here for here, ring in taken),
    )


def _tier(value: float, rings: Sequence[Ring], alike: Sequence[Shape]) -> protocol.CandidateTier:
    pools, sets = [], []
    for shape in alike:
        held = [(ring.free, here) for ring, here in zip(rings, shape, strict=True) if here]
        if len(held) == 1:
            pools.append(held[0][0])
            continue
        choices = [[mask_of(cards) for cards in combinations(bits(free), here)] for free, here in held]
        if prod(map(len, choices)) > MOST_SETS:
            pools.append(sum(free for free, _ in held))
        else:
            sets += [sum(masks) for masks in product(*choices)]
    return protocol.CandidateTier(value, sets=tuple(sets), pools=tuple(pools))


class Ascend(protocol.Vendor):
    """The rules of `ascend.hami.io`."""

    name = "ascend"
    profile = protocol.DriverProfile(driver=DRIVER, partition=TEMPLATE, model=MODEL)
    always_arranges = True  # rings are minded for everybody

    def arrange(self, node_view: protocol.NodeView) -> protocol.CandidateSets | None:
        return arrange(node_view)
