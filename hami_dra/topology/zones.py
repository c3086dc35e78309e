"""Zones of cards joined by a fast interconnect, and switches below them: scores and a decision tree.

Called by the rules of vendors whose cards come in zones. In: published attributes of the cards of a
node, by position. Out: bit masks by position. Pure.

Source: HAMi D/metax/sdevice.go:579-736 (prioritizeExclusiveDevices, scoreExclusiveDevices): groups
by linkZone, 10 points for a pair in one zone. Cards without a zone are grouped by their links, or
else by their PCIe switch.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from hami_dra.topology.islands import islands

LINKED: Final = 10
"""Points of a pair in one zone."""
SWITCHED: Final = 1
"""Points of a pair on one PCIe switch, for cards in no zone."""
_ONE_SWITCH: Final = "SB"
"""Letters of `hami.io/distance`: single switch, one board."""


class Zones(Struct, frozen=True):
    """Bit masks by position; no card is in two of them."""

    zones: tuple[int, ...]
    """By zone number, ascending."""
    switches: tuple[int, ...]
    """Switches with at least two cards, ordered by lowest card."""

    def connection(self, cards: int) -> int:
        """Return the points of all pairs among `cards` (bit mask): HAMi's S."""
        return LINKED * _pairs(self.zones, cards) + SWITCHED * _pairs(self.switches, cards)


class Pick(Struct, frozen=True):
    """All cards of `fixed` and any `more` cards of `pool`: every choice scores the same."""

    fixed: int
    pool: int
    more: int


def zones_of(group: Sequence[int], lanes: Sequence[Sequence[int]], distance: Sequence[str]) -> Zones:
    """Return the zones and switches of a node.

    `group`: zone numbers, 0 = none; `lanes[a][b]`, `distance[a][b]`: as published, 0 = none or not
    known. Cards without a number that are joined by links form zones too; these come last, by
    lowest card.
    """
    named: dict[int, int] = {}
    for card, number in enumerate(group):
        if number > 0:
            named[number] = named.get(number, 0) | 1 << card
    nameless = [card for card, number in enumerate(group) if number <= 0]
    linked = _joined(nameless, [[width > 0 for width in row] for row in lanes])
    left = [card for card in nameless if not any(mask >> card & 1 for mask in linked)]
    return Zones(
        zones=(*(named[number] for number in sorted(named)), *linked),
        switches=_joined(left, [[letter in _ONE_SWITCH for letter in row] for row in distance]),
    )


def decision_tree(zones: Zones, free: int, count: int) -> Iterator[Pick]:
    """Yield sets of `count` of the `free` cards (bit mask) by the tree, best first; not all possible sets.

    1. A zone that holds all: the one with fewest free cards first, equal ones by number.
    2. Zones from small to large until there are enough; then cards that are in none.
    3. Cards in no zone: a switch that holds all missing cards, else switches from small to large,
       then single cards.

    A switch that holds all comes before 2 if that scores more points: two cards on one switch are
    better than two unconnected ones.
    """
    if free.bit_count() < count:
        return
    in_zones, on_switches = _by_size(zones.zones, free), _by_size(zones.switches, free)
    holding = [Pick(0, zone, count) for zone in in_zones if zone.bit_count() >= count]
    yield from holding
    switches = [Pick(0, switch, count) for switch in on_switches if switch.bit_count() >= count]
    walk = _walk(zones, free, count)
    others = [*switches, *([] if holding else [walk])]
    yield from sorted(others, key=lambda pick: (-zones.connection(some_of(pick)), pick != walk))


def some_of(pick: Pick) -> int:
    """Return one of its sets: the fixed cards and the lowest cards of the pool."""
    mask, pool = pick.fixed, pick.pool
    for _ in range(pick.more):
        lowest = pool & -pool
        mask, pool = mask | lowest, pool ^ lowest
    return mask


def _walk(zones: Zones, free: int, count: int) -> Pick:
    fixed, missing = 0, count
    for zone in _by_size(zones.zones, free):
        if zone.bit_count() >= missing:
            return Pick(fixed, zone, missing)
        fixed, missing = fixed | zone, missing - zone.bit_count()
    switches = _by_size(zones.switches, free)
    for switch in switches:
        if switch.bit_count() >= missing:
            return Pick(fixed, switch, missing)
    for switch in switches:
        if switch.bit_count() >= missing:
            return Pick(fixed, switch, missing)
        fixed, missing = fixed | switch, missing - switch.bit_count()
    return Pick(fixed, free & ~fixed, missing)


def _by_size(groups: Sequence[int], free: int) -> list[int]:
    """Return the free cards of each group that has some, small groups first, equal ones in their order."""
    return sorted((group & free for group in groups if group & free), key=int.bit_count)


def _pairs(groups: Sequence[int], cards: int) -> int:
    sizes = ((group & cards).bit_count() for group in groups)
    return sum(size * (size - 1) // 2 for size in sizes)


def _joined(cards: Sequence[int], near: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """Return groups of at least two of the cards, as masks; a link reported by one side is enough."""
    links = {card: {peer: int(near[card][peer]) for peer in cards if peer != card} for card in cards}
    return tuple(sum(1 << card for card in island) for island in islands(links))
