"""Wings: blocks of linked cards on one board, some linked across, and the sets that work together.

Called by the vendors' rules. In: card numbers, groups, lanes, and the free cards, as bit masks by
position. Out: sets of cards, best first. Pure. The table is HAMi's for eight cards in two wings
(D/kunlun/topo.go:222-268, calcscore 76-98), read by card number. The cases that HAMi leaves open
(3, 5, 6, 7 cards, machines with fewer cards) follow the same principle.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, chain, combinations, islice
from typing import Final, NamedTuple

from msgspec import Struct

from hami_dra.topology.subsets import MOST_SETS, bits, mask_of

WING: Final = 4
"""Cards of a wing by number: 0-3, 4-7."""
PAIRS: Final = ((0, 4), (1, 5), (2, 6), (3, 7))
"""Numbers of cards that are linked across the wings."""
QUADS: Final = ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6))
"""Two pairs each, in the order in which they are tried."""
_SIZES: Final = {1: (1, 3, 2, 4)}
"""Preferred numbers of free cards in a wing, best first; for other counts: the fewer, the better."""
_NUMBERS: Final = range(128)
"""Valid card numbers; larger ones are ignored (ResourceSliceMaxDevices)."""


class Board(Struct, frozen=True):
    """The cards of one machine by position. Sets of cards are bit masks."""

    wings: tuple[int, ...]
    """The wing with the lowest card number first."""
    pairs: tuple[int, ...]
    quads: tuple[int, ...]
    linked: tuple[int, ...]
    """By position: the cards with a direct link to it."""

    def links_inside(self, cards: int) -> int:
        """Return twice the number of direct links between these cards."""
        return sum((self.linked[card] & cards).bit_count() for card in bits(cards))

    def wings_of(self, cards: int) -> int:
        """Return all cards of the wings that contain any of these cards."""
        return sum(wing for wing in self.wings if wing & cards)


class Stage(IntEnum):
    """Location of a set; lower is better."""

    WING = 1
    """Inside one wing."""
    CROSSING = 2
    """A pair or a quad across two wings."""
    FULL_WINGS = 3
    """Full wings, and the rest in one other wing."""


class Choice(NamedTuple):
    stage: Stage
    rank: int
    """Rank within the stage, lower is better. Choices of one rank differ only in which of two
    equivalent wings they use.
    """
    sets: tuple[int, ...]
    """Equally good sets."""


def board(numbers: Sequence[int], groups: Sequence[int], lanes: Sequence[Sequence[int]]) -> Board:
    """Return the board of a machine.

    `numbers`: numbers of the cards, by position; cards without a unique number get the unused ones
    in turn. `groups`: published wing of each card, 0 = not known, then the number decides. `lanes`:
    from card to card, shape (n, n); all 0 = not known, then the cards of one wing are linked, and
    those of a pair.
    """
    place = {number: position for position, number in enumerate(_numbered(numbers))}
    blocks: dict[int, int] = {}
    for number, position in place.items():
        if groups[position] > 0:
            blocks.setdefault(number // WING, groups[position])
    members: dict[int, int] = {}
    for number, position in sorted(place.items()):
        block = number // WING
        wing = groups[position] if groups[position] > 0 else blocks.get(block, -1 - block)
        members[wing] = members.get(wing, 0) | 1 << position
    wings = tuple(members.values())

    def known(sets: Sequence[Sequence[int]]) -> tuple[int, ...]:
        masks = (mask_of([place[number] for number in each]) for each in sets if place.keys() >= set(each))
        return tuple(mask for mask in masks if not any(mask & wing == mask for wing in wings))

    pairs = known(PAIRS)
    if any(chain.from_iterable(lanes)):
        linked = [mask_of([peer for peer, count in enumerate(row) if count > 0]) for row in lanes]
    else:
        linked = [0] * len(numbers)
        for group in (*wings, *pairs):
            for position in bits(group):
                linked[position] |= group & ~(1 << position)
    return Board(wings, pairs, known(QUADS), tuple(linked))


def choices(board: Board, free: int, count: int) -> Iterator[Choice]:
    """Yield sets of `count` (at least 1) free cards that may work together, best first.

    1. Inside one wing that holds them all: by HAMi's preference among the wings, the first wing
       among equals.
    2. Across the wings: pairs or quads, one by one.
    3. More cards than a wing of this machine has: full wings and the rest from one other wing,
       linked cards first.

    Each set appears once.
    """
    seen: set[int] = set()
    for choice in _choices(board, free, count):
        fresh = tuple(cards for cards in choice.sets if cards not in seen)
        seen.update(fresh)
        if fresh:
            yield choice._replace(sets=fresh)


def _choices(board: Board, free: int, count: int) -> Iterator[Choice]:
    wings = [wing & free for wing in board.wings if (wing & free).bit_count() >= count]
    order = _SIZES.get(count, ())
    for rank, wing in sorted(((_rank(order, wing.bit_count()), wing) for wing in wings), key=lambda entry: entry[0]):
        yield Choice(Stage.WING, rank, tuple(_subsets(wing, count)))
    for rank, crossing in enumerate(_crossing(board, free, count)):
        yield Choice(Stage.CROSSING, rank, (crossing,))
    if count > max(wing.bit_count() for wing in board.wings):
        for rank, sets in enumerate(_full_wings(board, free, count)):
            yield Choice(Stage.FULL_WINGS, rank, sets)


def bubble(board: Board, cards: int) -> int:
    """Return HAMi's measure of a board's fragmentation.

    It is 2, plus one for each wing with one card, minus one for each with four. No cards at all: 1.
    """
    if not cards:
        return 1
    sizes = [(wing & cards).bit_count() for wing in board.wings]
    return 2 + sizes.count(1) - sizes.count(WING)


def _numbered(numbers: Sequence[int]) -> list[int]:
    """Return a unique number for each card: the published one, or else the lowest unused one."""
    owners: dict[int, int] = {}
    for position, number in enumerate(numbers):
        if number in _NUMBERS:
            owners.setdefault(number, position)
    spare = (number for number in range(len(numbers) + len(owners)) if number not in owners)
    return [number if owners.get(number) == position else next(spare) for position, number in enumerate(numbers)]


def _rank(order: Sequence[int], size: int) -> int:
    return order.index(size) if size in order else size


def _crossing(board: Board, free: int, count: int) -> Iterator[int]:
    """Yield free pairs and quads. With six cards free, a quad should leave two linked ones."""
    if count == len(PAIRS[0]):
        yield from (pair for pair in board.pairs if pair & free == pair)
    elif count == len(QUADS[0]):
        found = [quad for quad in board.quads if quad & free == quad]
        if found and free.bit_count() == count + 2:
            groups = (*board.wings, *board.pairs)
            first = next((quad for quad in found if any(not free & ~quad & ~group for group in groups)), found[-1])
            found.remove(first)
            found.insert(0, first)
        yield from found


def _full_wings(board: Board, free: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield combinations of as many full wings as possible.

    A wing is full if the set takes all of this machine's cards in it.
    """
    full = [wing for wing in board.wings if wing & free == wing]
    most = sum(size <= count for size in accumulate(sorted(wing.bit_count() for wing in full)))
    for size in range(most, 0, -1):
        for pick in combinations(full, size):
            taken = sum(pick)
            rest = count - taken.bit_count()
            if not rest:
                yield (taken,)
            elif rest > 0:
                others = [wing & free for wing in board.wings if not wing & taken]
                for other in others:
                    yield from _linked_first(board, [taken | cards for cards in _subsets(other, rest)])


def _linked_first(board: Board, sets: Sequence[int]) -> Iterator[tuple[int, ...]]:
    by_links: dict[int, list[int]] = {}
    for cards in sets:
        by_links.setdefault(board.links_inside(cards), []).append(cards)
    for links in sorted(by_links, reverse=True):
        yield tuple(by_links[links])


def _subsets(cards: int, count: int) -> Iterator[int]:
    return map(mask_of, islice(combinations(bits(cards), count), MOST_SETS))
