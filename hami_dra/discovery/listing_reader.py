"""Reads one listing of a vendor's tool entry by entry, so that one that cannot be read hides no other.

Used by all parsers of tools' outputs, of cards and of their readings. In: entries, each parsed
inside a `with`. Out: the sentences about those that cannot be read, and the keys of their cards;
from the others a `Listing`. Pure.

    reader = ListingReader("mx-smi -L")
    for number, line in enumerate(text.splitlines(), start=1):
        with reader.line(number, line, trace_in(line)):
            cards.append(parse(line))        # may raise Unexpected: the next line is read then
    return reader.settled(cards)
"""

from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import Unexpected, Unreadable, shown
from hami_dra.discovery.matching import Trace, trace_of
from hami_dra.discovery.memory import Listing
from hami_dra.discovery.reading import bus_id_in


class ListingReader(Struct, eq=False):
    tool: str
    """The command, for messages: `efsmi -q`."""
    problems: list[str] = field(default_factory=list)
    seen: list[Trace] = field(default_factory=list)
    """Listed devices that cannot be read."""

    @contextmanager
    def entry(self, place: str, trace: Trace | None = None) -> Iterator[None]:
        """Note an entry that raises Unexpected, and go on. `trace`: the card that it is about."""
        try:
            yield
        except Unexpected as error:
            self.problems.append(f"{place}: {error}")
            if trace is not None:
                self.seen.append(trace)

    def line(self, number: int, line: str, trace: Trace | None = None) -> AbstractContextManager[None]:
        """Read one line of the output; `number` counts from 1."""
        return self.entry(f"{self.tool}, line {number} {shown(line)}", trace)

    def require(self, entries: Sized, expected: str) -> None:
        """Raise Unreadable, with all problems or else what was expected, if nothing could be read."""
        if not entries:
            raise Unreadable("; ".join(self.problems) or f"{self.tool}: expected {expected}")

    def settled(self, cards: Iterable[Card], *, none_is_fine: bool = False) -> Listing:
        """Return the cards by index, each index and uuid once: of two, the later one is left out and named.

        Raises Unreadable when nothing is left, unless the tool itself reported that there is
        nothing (`none_is_fine`).
        """
        kept: dict[int, Card] = {}
        uuids: dict[str, int] = {}
        for card in cards:
            if card.index in kept:
                self.problems.append(
                    f"{self.tool}: card {card.index} is listed twice; the second, {card.uuid}, is left out"
                )
                self.seen.append(replace(trace_of(card), index=None, minor=None))
            elif card.uuid in uuids:
                both = f"{uuids[card.uuid]} and {card.index}"
                self.problems.append(f"{self.tool}: cards {both} have one uuid, {card.uuid}; the second is left out")
                self.seen.append(replace(trace_of(card), uuid="", serial=""))
            else:
                kept[card.index] = card
                uuids[card.uuid] = card.index
        if not none_is_fine:
            self.require(kept, "cards, got none")
        return Listing(tuple(kept[index] for index in sorted(kept)), tuple(self.problems), tuple(self.seen))


def trace_in(text: str) -> Trace | None:
    """Return the card whose PCI address stands in an otherwise unreadable text, if one does."""
    address = bus_id_in(text)
    return Trace(bus_id=address) if address else None
