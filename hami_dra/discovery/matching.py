"""Matching of listed devices to known cards: by uuid, else serial number, else PCI address, else number.

Called by the back ends' memory. In: known cards, and cards or traces of a listing. Out: pairs.
Pure.

Listings of one tool differ in their data. One may show `GPU-00c1...`, another only the serial
number, a third one only `/dev/neuron3`. A card that two listings name differently is one card,
unless they contradict each other:

    known: uuid GPU-1, serial S1, at 0000:1b:00.0
    listed: serial S1                      → the known card
    listed: at 0000:1b:00.0                → the known card
    listed: serial S2, at 0000:1b:00.0     → another card that was put in its place
    listed: uuid GPU-2, at 0000:1b:00.0    → another card
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from hami_dra.api.hardware import Card, Fault, IdentitySource


class Trace(Struct, frozen=True, kw_only=True):
    """The names of a card in a listing; empty or None: not given."""

    uuid: str = ""
    serial: str = ""
    bus_id: str = ""
    minor: int | None = None
    index: int | None = None
    faults: tuple[Fault, ...] | None = None
    """The card's faults in the listing; None: its health is unknown too."""

    @property
    def anonymous(self) -> bool:
        """Return whether a listed device cannot be identified."""
        return not any(_is_known(key(self)) for key in _KEYS)


def trace_of(card: Card) -> Trace:
    """Return all keys by which the card is recognised. A uuid derived from its place is no better than the place."""
    uuid = "" if card.provenance.identified_by is IdentitySource.PLACE else card.uuid
    serial = card.serial or (card.uuid if card.provenance.identified_by is IdentitySource.SERIAL else "")
    return Trace(uuid=uuid, serial=serial, bus_id=card.pci_bus_id, minor=card.minor, index=card.index)


def assigned(known: Sequence[Trace], found: Sequence[Card]) -> dict[int, int]:
    """Return position in `found` → position in `known`, for the cards of `found` that are known."""
    return _paired(
        known,
        [trace_of(card) for card in found],
        [card.provenance.identified_by is IdentitySource.UUID for card in found],
    )


def touched(known: Sequence[Trace], seen: Iterable[Trace], missing: Collection[int]) -> dict[int, Trace]:
    """Return for those of `missing` (positions in `known`) that the traces match, the first trace that does.

    Each trace counts by its strongest key that matches any card. A number that a present card has
    is that card's: the numbers of missing ones may have gone to others.
    """
    found: dict[int, Trace] = {}
    for trace in seen:
        for key in _KEYS:
            places = {place for place, card in enumerate(known) if _same(key(card), key(trace))}
            if places:
                if places.issubset(missing):
                    found = dict.fromkeys(places, trace) | found
                break
    return found


_KEYS: Final[tuple[Callable[[Trace], Hashable], ...]] = (
    lambda trace: trace.uuid,
    lambda trace: trace.serial,
    lambda trace: trace.bus_id,
    lambda trace: trace.minor,
    lambda trace: trace.index,
)
"""Strongest first."""
_UUID, _SERIAL, _ADDRESS, _MINOR = range(4)


def _paired(known: Sequence[Trace], found: Sequence[Trace], true_uuid: Sequence[bool]) -> dict[int, int]:
    pairs: dict[int, int] = {}
    for strength, key in enumerate(_KEYS):
        free = [place for place in range(len(known)) if place not in pairs.values()]
        left = [position for position in range(len(found)) if position not in pairs]
        values = Counter(key(found[position]) for position in left)
        places = Counter(key(known[place]) for place in free)
        of_value = {key(known[place]): place for place in free}
        for position in left:
            value = key(found[position])
            # two cards of one board may share a serial number
            if not _is_known(value) or values[value] > 1 or places[value] != 1:
                continue
            place = of_value[value]
            if not _contradict(known[place], found[position], strength, true_uuid=true_uuid[position]):
                pairs[position] = place
    return pairs


def _contradict(known: Trace, found: Trace, strength: int, *, true_uuid: bool) -> bool:
    """Return whether a key stronger than the one that agrees, or the uuid, belongs to two cards."""
    if strength == _UUID:
        return False
    if true_uuid and known.uuid and known.uuid not in (found.uuid, known.serial):
        return True
    weaker_first = (_SERIAL, _ADDRESS, _MINOR)[: max(strength - _SERIAL, 0)]
    return any(_differ(_KEYS[each](known), _KEYS[each](found)) for each in weaker_first)


def _differ(one: Hashable, other: Hashable) -> bool:
    return _is_known(one) and _is_known(other) and one != other


def _same(one: Hashable, other: Hashable) -> bool:
    return _is_known(one) and one == other


def _is_known(value: Hashable) -> bool:
    return value not in ("", None)
