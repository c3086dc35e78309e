"""A back end's memory of the cards of this machine, so that a glitch of a tool changes neither a
card's identity nor its name.

Used by all back ends. In: listings, from parsers. Out: cards with the identity and the name number
that they had before, and the faults of each. Kept in a file next to the driver's checkpoint, over
restarts and reboots.

- A uuid stays with its card, whatever a listing reports later (`matching`). So does the number in
  its published name; a new card gets a free one.
- A listing with less data than the best one so far changes nothing of a record but the number and
  the faults; a value that is missing this time stays as it was.
- A card that no listing shows any more is `lost`. One that was listed and could not be read is
  `unreadable`; one that is missing while a listing that used to show it does not answer is
  `unseen`. Both keep their record.
- A card that was lost before the driver started is lost. It is forgotten once the machine was
  booted without it and it stayed away for `FORGET_SECONDS`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api.hardware import Card, Fault
from hami_dra.discovery.durable import DurableFile, NotStored, boot_id
from hami_dra.discovery.matching import Trace, assigned, touched, trace_of

log = logging.getLogger(__name__)

LOST: Final = "lost"
"""Fault code of a card that was found before, and that no listing shows now."""
UNREADABLE: Final = "unreadable"
UNSEEN: Final = "unseen"
CARDS_FILE: Final = "cards.json"
FORGET_SECONDS: Final = 3600.0
_MOST_ABSENT: Final = 16
"""Maximum number of missing cards in memory: a tool that invents cards must not fill the slice with them."""
_VERSION: Final = 1
_NOT_A_VALUE: Final = ("", None, ())


class Listing(Struct, frozen=True):
    """The output of a vendor's tool at one time."""

    cards: tuple[Card, ...]
    """By index."""
    problems: tuple[str, ...] = ()
    seen: tuple[Trace, ...] = ()
    """Listed devices without a record."""
    failed: frozenset[str] = frozenset()
    """Listings that did not answer, or not completely: a card that one of them used to show may be present."""


class Judged(Struct, frozen=True):
    """A listing, compared with the known cards."""

    present: Mapping[str, Card]
    """Uuid of a known card → its record in the listing."""
    new: tuple[Card, ...]
    faults: Mapping[str, tuple[Fault, ...]]
    """Faults of every known card."""
    outdated: bool
    """`CardMemory.update` would change something that matters to containers or to the slices."""


class _RememberedCard(Struct, frozen=True):
    card: Card
    """Without faults."""
    boot: str
    """Id of the boot in which it was last present."""


class _Entry(msgspec.Struct, frozen=True):
    boot: str
    card: msgspec.Raw


class _MemoryFile(msgspec.Struct, frozen=True):
    version: int
    cards: tuple[_Entry, ...] = ()


class CardMemory:
    """The known cards. `record`: the type of the vendor's cards. `file`: may be missing; None:
    nothing outlives the program. Not thread-safe.
    """

    def __init__(
        self,
        record: type[Card],
        file: Path | None = None,
        *,
        boot: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = DurableFile(file)
        self._record = record
        self._boot = boot_id() if boot is None else boot
        self._now = now
        self._kept: dict[str, _RememberedCard] | None = None
        self._faults: dict[str, tuple[Fault, ...]] = {}
        """Faults in the last best listing."""
        self._missing_since: dict[str, float] = {}
        self._unwritten = False

    @property
    def cards(self) -> Mapping[str, Card]:
        return {uuid: kept.card for uuid, kept in self._read().items()}

    def new_in(self, listing: Listing) -> list[Card]:
        known = list(self._read())
        same = assigned(self._traces(), listing.cards) if known else {}
        return [card for position, card in enumerate(listing.cards) if position not in same]

    def judge(
        self, listing: Listing, witnesses: Callable[[], Iterable[Trace]] = tuple, *, confirmed: bool = False
    ) -> Judged:
        """Compare a listing with the known cards.

        `witnesses`: the content of all other listings; read only if a known card is missing.
        `confirmed`: the new cards of the listing are certain, so that cards that were in their
        places must be gone.
        """
        kept = self._read()
        uuids, traces = list(kept), self._traces()
        same = assigned(traces, listing.cards)
        present = {uuids[place]: listing.cards[position] for position, place in same.items()}
        now = [trace_of(present.get(uuid, kept[uuid].card)) for uuid in uuids]
        missing = [place for place, uuid in enumerate(uuids) if uuid not in present]
        new = tuple(card for position, card in enumerate(listing.cards) if position not in same)
        seen = list(listing.seen)
        if not confirmed:
            seen += [replace(trace_of(card), uuid="", serial="") for card in new]
        named = touched(now, seen, missing)
        if any(place not in named and not _excused(kept[uuids[place]].card, listing) for place in missing):
            seen += witnesses()
            named = touched(now, seen, missing)
        unnamed = any(trace.anonymous for trace in seen)
        faults = {uuid: self._faults_of(kept[uuid].card, card) for uuid, card in present.items()}
        for place in missing:
            card = kept[uuids[place]].card
            reported = named[place].faults if place in named else None
            if reported is not None:
                faults[card.uuid] = reported
                continue
            if place in named or unnamed:
                fault = Fault(code=UNREADABLE, message=f"{_named(card)} is listed, and its record cannot be read")
            elif _excused(card, listing):
                fault = Fault(
                    code=UNSEEN, message=f"{_named(card)} is missing, and not all listings that showed it answer"
                )
            else:
                fault = Fault(code=LOST, message=f"{_named(card)} was found before and is missing now")
            faults[card.uuid] = (fault,)
        moved = any(_moved(kept[uuid].card, card) for uuid, card in present.items())
        return Judged(present, new, faults, outdated=bool(new) or moved)

    def update(self, judged: Judged) -> tuple[tuple[Card, ...], tuple[str, ...]]:
        """Take the listing over. Returns all cards, with faults; problems."""
        before = self._read()
        after = _joined({uuid: kept.card for uuid, kept in before.items()}, judged)
        lost = [uuid for uuid, faults in judged.faults.items() if any(fault.code == LOST for fault in faults)]
        self._missing_since = {uuid: self._missing_since.get(uuid, self._now()) for uuid in lost}
        kept = {
            card.uuid: _RememberedCard(card, before[card.uuid].boot if card.uuid in lost else self._boot)
            for card in after
            if not self._is_over(before.get(card.uuid))
        }
        for uuid in [uuid for uuid in kept if not kept[uuid].card.present][:-_MOST_ABSENT]:
            del kept[uuid]
        self._faults |= {card.uuid: card.faults for card in judged.new}
        problems = self._write(kept)
        cards = sorted((each.card for each in kept.values()), key=lambda card: (not card.present, card.index))
        gone = [fault.message for uuid in lost if uuid in kept for fault in judged.faults[uuid]]
        shown = tuple(
            replace(card, faults=judged.faults.get(card.uuid, _new_faults(judged, card.uuid))) for card in cards
        )
        return shown, (*gone, *problems)

    # --- faults ---

    def _faults_of(self, known: Card, found: Card) -> tuple[Fault, ...]:
        """Return the faults. A listing with less data than the best one is no reason to call a card healthy again."""
        if found.provenance.rank <= known.provenance.rank:
            self._faults[known.uuid] = found.faults
            return found.faults
        by_code = {fault.code: fault for fault in (*self._faults.get(known.uuid, ()), *found.faults)}
        return tuple(by_code.values())

    # --- the file ---

    def _traces(self) -> list[Trace]:
        return [trace_of(kept.card) for kept in self._read().values()]

    def _is_over(self, kept: _RememberedCard | None) -> bool:
        since = None if kept is None else self._missing_since.get(kept.card.uuid)
        return (
            kept is not None and since is not None and kept.boot != self._boot and self._now() - since >= FORGET_SECONDS
        )

    def _read(self) -> dict[str, _RememberedCard]:
        """Read the file, which another instance of the driver may have written meanwhile."""
        if self._kept is not None and not self._file.changed:
            return self._kept
        try:
            text = self._file.read()
            if text is not None:
                self._kept = self._decoded(text)
        except (NotStored, msgspec.MsgspecError) as error:
            self._file.set_aside()
            log.error(  # noqa: TRY400 (the sentence is complete)
                "%s, which has the names of this node's cards, cannot be used: %s: it is set aside, and cards get "
                "their names from this discovery",
                self._file.path,
                error,
            )
        return self._kept or {}

    def _decoded(self, text: bytes) -> dict[str, _RememberedCard]:
        found = msgspec.json.decode(text, type=_MemoryFile)
        if found.version != _VERSION:
            raise NotStored(f"it has version {found.version}, and this driver reads {_VERSION}")
        cards = [(msgspec.json.decode(entry.card, type=self._record), entry.boot) for entry in found.cards]
        return {card.uuid: _RememberedCard(card, boot) for card, boot in cards}

    def _write(self, kept: dict[str, _RememberedCard]) -> tuple[str, ...]:
        changed = self._unwritten or kept != (self._kept or {})
        self._kept = kept
        if not (changed or (kept and self._file.changed)):
            return ()
        self._unwritten = True
        try:
            self._file.write(msgspec.json.encode({"version": _VERSION, "cards": list(kept.values())}))
        except NotStored as error:
            return (f"the names of the cards would not outlive a restart: {error}",)
        self._unwritten = False
        return ()


def _joined(known: Mapping[str, Card], judged: Judged) -> list[Card]:
    """Return all known cards after the update."""
    moved_to = {known[uuid].index: card.index for uuid, card in judged.present.items()}
    renumbered = any(before != after for before, after in moved_to.items())
    taken_numbers = {card.name_number for card in known.values()}
    cards = []
    for uuid, found in judged.present.items():
        cards.append(_refreshed(known[uuid], found, moved_to))
    for found in sorted(judged.new, key=lambda card: card.index):
        number = _first_free(taken_numbers) if found.index in taken_numbers else found.index
        taken_numbers.add(number)
        cards.append(replace(found, number=number, faults=()))
    taken = {card.index for card in cards}
    for uuid, card in known.items():
        if uuid in judged.present:
            continue
        moved = renumbered or card.index in taken
        lost = any(fault.code == LOST for fault in judged.faults.get(uuid, ()))
        kept = replace(card, present=card.present and not (lost or moved), faults=())
        if moved:
            # its neighbours have other numbers now, so its data about them is outdated
            index = _first_free(taken) if card.index in taken else card.index
            kept = replace(kept, index=index, links={}, distances={})
        taken.add(kept.index)
        cards.append(kept)
    return cards


def _refreshed(known: Card, found: Card, moved_to: Mapping[int, int]) -> Card:
    """Return the record of a known card after it was found again."""
    if found.provenance.rank > known.provenance.rank:
        minor = known.minor if found.minor is None else found.minor
        return _readdressed(replace(known, index=found.index, minor=minor, present=True, faults=()), moved_to)
    unreported: dict[str, Any] = {
        name: getattr(known, name)
        for name in known.__struct_fields__
        if name not in ("links", "distances") and getattr(found, name) in _NOT_A_VALUE
    }
    provenance = replace(found.provenance, identified_by=known.provenance.identified_by)
    card = replace(found, **unreported)
    card = replace(card, uuid=known.uuid, number=known.name_number, provenance=provenance, faults=())
    if found.links or found.distances:
        return card
    return _readdressed(replace(card, links=known.links, distances=known.distances), moved_to)


def _readdressed(card: Card, moved_to: Mapping[int, int]) -> Card:
    """Return the card with peers under their present numbers; missing ones are left out."""
    return replace(
        card,
        links={moved_to[peer]: lanes for peer, lanes in card.links.items() if peer in moved_to},
        distances={moved_to[peer]: far for peer, far in card.distances.items() if peer in moved_to},
    )


def _first_free(taken: Iterable[int]) -> int:
    """Return the lowest number above all taken ones, which no tool gave to any card."""
    return max(taken, default=-1) + 1


def _moved(known: Card, found: Card) -> bool:
    number = found.minor is not None and found.minor != known.minor
    return not known.present or found.index != known.index or number


def _new_faults(judged: Judged, uuid: str) -> tuple[Fault, ...]:
    return next((card.faults for card in judged.new if card.uuid == uuid), ())


def _excused(card: Card, listing: Listing) -> bool:
    return not listing.failed.isdisjoint(card.provenance.listed_by)


def _named(card: Card) -> str:
    return f"card {card.index} ({card.uuid})"
