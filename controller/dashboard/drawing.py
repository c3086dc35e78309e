"""Geometry of drawings: the layout of cards, islands, links and time series. Pure.

Templates turn it into SVG. All lengths are in units of the drawing's viewBox. Colours are numbers
of classes (`c0` ... `c9`); everything that has a colour also has a letter, so that colour never
carries meaning alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from controller.dashboard.history import TimelineEvent
from controller.views.overview import Card, Reservation, Tenant

COLOURS: Final = 10
CARD_WIDTH: Final = 200
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Marker(Struct, frozen=True):
    """The symbol of one pod, or of a claim without a pod, in all drawings of a page."""

    letter: str
    colour: int
    namespace: str
    name: str
    is_pod: bool


class Segment(Struct, frozen=True):
    """One tenant's part of a card, as a section of the card's bar."""

    x: float
    width: float
    marker: Marker
    tenant: Tenant


class DrawnCard(Struct, frozen=True):
    card: Card
    segments: tuple[Segment, ...]
    state: str
    """`free`, `partly`, `full`, `unhealthy`."""
    number: str
    others: tuple[float, float] | None = None
    """x and width of what none of the shown tenants takes: hidden ones, and allocations being written."""
    reserved: tuple[Reservation, ...] = ()
    """What of it is kept for pods that do not run yet."""


class Island(Struct, frozen=True):
    number: int
    """0: cards in no island."""
    cards: tuple[DrawnCard, ...]


def letter(number: int) -> str:
    """Return A, B, ..., Z, AA, AB, ... by number."""
    found = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, len(_LETTERS))
        found = _LETTERS[rest] + found
    return found


def markers(cards: Iterable[Card]) -> dict[tuple[str, str], Marker]:
    """Return (namespace, claim) → marker, one for each pod, with stable letters: by namespace and pod."""
    holders: dict[tuple[str, str, bool], list[tuple[str, str]]] = {}
    for card in cards:
        for each in card.tenants:
            holder = (each.namespace, each.pod or each.claim, bool(each.pod))
            holders.setdefault(holder, []).append((each.namespace, each.claim))
    found = {}
    for place, (key, claims) in enumerate(sorted(holders.items())):
        marker = Marker(letter(place), place % COLOURS, *key)
        found.update(dict.fromkeys(claims, marker))
    return found


def drawn(card: Card, marks: Mapping[tuple[str, str], Marker], reserved: tuple[Reservation, ...] = ()) -> DrawnCard:
    segments: list[Segment] = []
    x = 0.0
    for tenant in card.tenants:
        if tenant.admin:
            continue
        width = min(CARD_WIDTH * part_of(card, tenant), CARD_WIDTH - x)
        segments.append(Segment(round(x, 2), round(width, 2), marks[tenant.namespace, tenant.claim], tenant))
        x += width
    number = card.device if card.index is None else str(card.index)
    rest = CARD_WIDTH * taken(card) - x
    others = (round(x, 2), round(rest, 2)) if rest > 1 else None
    return DrawnCard(card, tuple(segments), state_of(card), number, others, reserved)


def markers_of(cards: Iterable[DrawnCard]) -> list[Marker]:
    """Return the markers that are drawn on the cards, each once, by letter."""
    found = {segment.marker for card in cards for segment in card.segments}
    return sorted(found, key=lambda marker: (len(marker.letter), marker.letter))


def part_of(card: Card, tenant: Tenant) -> float:
    """Return the tenant's share of the card's memory, else of its cores, else of its slots; 1.0 for all of it."""
    if tenant.whole and tenant.device == card.device:
        return 1.0
    return _share(card, tenant.memory, tenant.cores, tenant.shares)


def taken(card: Card) -> float:
    """Return the share of the card that is taken: of its memory, else of its cores, else of its slots."""
    if card.exclusive:
        return 1.0
    return _share(card, card.memory_used, card.cores_used, card.shares_used)


def _share(card: Card, memory: int, cores: int, shares: int) -> float:
    """Return the share of the card that these amounts are: of its memory, else of its cores, else of its slots."""
    for used, total in ((memory, card.memory_total), (cores, card.cores_total), (shares, card.shares_total)):
        if total and used:
            return min(used / total, 1.0)
    return 0.0


def state_of(card: Card) -> str:
    if card.health or card.cordoned:
        return "unhealthy"
    if card.free:
        return "free"
    full = card.exclusive or any(
        total and used >= total
        for used, total in (
            (card.memory_used, card.memory_total),
            (card.cores_used, card.cores_total),
            (card.shares_used, card.shares_total),
        )
    )
    # not free and not held: its node accepts no pods
    return "full" if full else "partly" if card.tenants or card.shares_used or card.memory_used else "unhealthy"


def islands(cards: Sequence[DrawnCard]) -> list[Island]:
    """Return the islands of one vendor's cards on one node; cards in no island come last."""
    found: dict[int, list[DrawnCard]] = {}
    for each in cards:
        found.setdefault(max(each.card.island, 0), []).append(each)
    return [Island(number, tuple(found[number])) for number in sorted(found, key=lambda number: (number == 0, number))]


# --- history ------------------------------------------------------------------------------------


class TenantSegment(Struct, frozen=True):
    """A claim on a card, with start and end; None: before the recorded history, or not yet."""

    namespace: str
    claim: str
    pod: str
    since: datetime | None
    until: datetime | None


def tenant_segments(happenings: Sequence[TimelineEvent]) -> list[TenantSegment]:
    """Return the claims on a card, newest first. `happenings`: newest first."""
    open_ends: dict[tuple[str, str], datetime] = {}
    found: list[TenantSegment] = []
    for each in happenings:
        key = (each.namespace, each.claim)
        if not each.taken:
            if key in open_ends:  # its start is no longer recorded
                found.append(TenantSegment(*key, each.pod, None, open_ends.pop(key)))
            open_ends[key] = each.at
        else:
            found.append(TenantSegment(*key, each.pod, each.at, open_ends.pop(key, None)))
    found += [TenantSegment(*key, "", None, until) for key, until in open_ends.items()]
    return found
