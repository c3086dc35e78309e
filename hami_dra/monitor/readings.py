"""Readings of a card, their parsing from the output of tools, and the match with a card. Pure.

Written by the vendors' modules of this package, read by the node driver's metrics. A value that a
tool does not report is None, never 0. Amounts of memory and counts are exact integers. Measurements
(percent, degrees, watts) are floats, finite and in the range that the caller of `measured` gives;
anything else becomes a problem in words, and None.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import Unexpected, shown
from hami_dra.discovery.reading import AMOUNT, MAX_BYTES, UNITS, said, whole

T = TypeVar("T")
Found = TypeVar("Found")
Subject_contra = TypeVar("Subject_contra", contravariant=True)

MAX_COUNT: Final = (1 << 63) - 1
"""Largest plausible number of errors."""
_NUMBER: Final = re.compile(r"(-?[0-9]{1,15}(?:\.[0-9]{1,18})?)\s*(\D*)")
_PERCENT: Final = {"%": 1.0}
_CELSIUS: Final = {"c": 1.0, "°c": 1.0, "℃": 1.0}
_WATTS: Final = {"w": 1.0, "mw": 0.001}
_FAR_OFF: Final = 2
"""A total that differs from the card's memory by more than this factor has a wrong unit, or belongs to another card."""


class Reading(Struct, frozen=True, kw_only=True):
    """One card at one moment.

    The tool determines which of the first three fields identify it; empty, None = not reported.
    """

    index: int | None = None
    uuid: str = ""
    """Or its serial number."""
    bus_id: str = ""
    memory_total: int | None = None
    """Bytes."""
    memory_used: int | None = None
    """Bytes, by all programs on the card."""
    utilization: float | None = None
    """Percent of time in which the card computed, 0 to 100."""
    memory_utilization: float | None = None
    """Percent of time in which its memory controller was busy, 0 to 100."""
    temperature: float | None = None
    """Degrees Celsius, of the hottest part of the chip that the tool reports."""
    memory_temperature: float | None = None
    power: float | None = None
    """Watts, of the whole card."""
    fan: float | None = None
    """Percent of its highest speed."""
    ecc_corrected: int | None = None
    """Memory errors since the card's driver was loaded."""
    ecc_uncorrected: int | None = None


class ToolReport(Struct, frozen=True):
    """Content of one output of a tool."""

    readings: tuple[Reading, ...]
    problems: tuple[str, ...] = ()
    """Sentences for people: unreadable values, and where they are."""


class Sample(Struct, Generic[Found], frozen=True):
    """The latest readings of the cards, or of the containers that share them."""

    readings: Mapping[str, Found] = field(default_factory=dict)
    """By `Card.uuid` or `GrantedContainer.view`; a container whose programs have not begun is not in it."""
    problems: tuple[str, ...] = ()
    """Sentences for people."""


class Sampler(Protocol[Subject_contra, Found]):
    """Reads the cards, or containers, of one vendor. Called from a thread, one call at a time."""

    source: str
    """Name of the library or tool; `simulated` if there is no hardware."""

    def sample(self, subjects: Sequence[Subject_contra], /) -> Sample[Found]:
        """Read them. Raises DiscoveryError if nothing can be read.

        Blocks while the hardware answers, up to a limit of its own.
        """

    def close(self) -> None:
        """End what it has started, immediately. May be called twice, and while `sample` runs."""


CardSampler = Sampler[Card, Reading]


# --- parsing ---


def measured(text: str, units: Mapping[str, float], unit: str, most: float, what: str, *, least: float = 0.0) -> float:
    """Parse `37W`, `35 ℃`, or a bare number in `unit`, the unit of its column. Raises Unexpected.

    A bare number without a column unit is an error.
    """
    found = _NUMBER.fullmatch(text.strip())
    factor = units.get((found[2] or unit).strip().lower()) if found else None
    if found is None or factor is None or not least <= float(found[1]) * factor <= most:
        raise Unexpected(f"{what} from {least:g} to {most:g}", f"{text} {unit}".strip())
    return float(found[1]) * factor


def row_of(names: Sequence[str], cells: Sequence[str], what: str, between: str) -> dict[str, str]:
    """Return a row of a table by column name. Raises Unexpected.

    `what` the cells are called in messages, and the separator `between` them.
    """
    if len(cells) != len(names):
        raise Unexpected(f"{len(names)} {what}", between.join(cells))
    return dict(zip(names, cells, strict=True))


def percent(text: str, unit: str = "") -> float:
    return measured(text, _PERCENT, unit, 100.0, "a percentage")


def celsius(text: str, unit: str = "") -> float:
    return measured(text, _CELSIUS, unit, 200.0, "degrees Celsius", least=-50.0)


def watts(text: str, unit: str = "") -> float:
    return measured(text, _WATTS, unit, 20_000.0, "watts")


def amount(text: str, unit: str = "") -> int:
    """Parse an amount of memory to bytes; 0 is valid."""
    found = AMOUNT.fullmatch(text.strip())
    power = UNITS.get((found[2] or unit).strip().lower()) if found else None
    if found is None or power is None or int(found[1]) << power > MAX_BYTES:
        raise Unexpected("an amount of memory such as 826 MiB", f"{text} {unit}".strip())
    return int(found[1]) << power


def count(text: str) -> int:
    return whole(text, at_most=MAX_COUNT, what="a count")


class Words:
    """Values of one card in an output.

    Missing values are None; invalid ones are None too, and listed among `problems`.
    """

    def __init__(self, place: str, problems: list[str]) -> None:
        """Set the `place` for messages: the tool and the line."""
        self._place = place
        self._problems = problems

    def read(self, what: str, text: str | None, parse: Callable[[str], T]) -> T | None:
        word = said(text)
        if not word:
            return None
        try:
            return parse(word)
        except Unexpected as error:
            self._problems.append(f"{self._place}, {what}: {error}")
            return None

    def within(self, used: int | None, total: int | None) -> int | None:
        """Return `used`, or None if it exceeds the total."""
        if used is not None and total is not None and used > total:
            self._problems.append(f"{self._place}: expected at most {total} bytes in use, got {used}")
            return None
        return used


def share_of(total: int | None, share: float | None) -> int | None:
    """Return a percentage of an amount in whole bytes, for tools that report only percentages."""
    return None if total is None or share is None else round(total * share / 100)


# --- cards ---


def joined(cards: Sequence[Card], reports: Iterable[ToolReport]) -> Sample[Reading]:
    """Join several outputs: of two values the first counts, gaps are filled from later outputs."""
    known: dict[str, Reading] = {}
    problems: list[str] = []
    for report in reports:
        problems += report.problems
        seen: set[str] = set()
        for reading in report.readings:
            card = _card_of(reading, cards)
            if card is None:
                name = shown(reading.uuid or reading.bus_id or f"number {reading.index}")
                problems.append(f"a reading of a card that was not discovered: {name}")
            elif card.uuid in seen:
                problems.append(f"two readings of card {card.index} ({card.uuid}); the second is left out")
            else:
                seen.add(card.uuid)
                believed = _believed(card, reading, problems)
                known[card.uuid] = _filled(known[card.uuid], believed) if card.uuid in known else believed
    return Sample(known, tuple(dict.fromkeys(problems)))


def _card_of(reading: Reading, cards: Sequence[Card]) -> Card | None:
    """Return the card of a reading: by UUID or serial number, else by PCI address, else by number.

    Numbers come last because another card may have taken over a number.
    """
    if reading.uuid:
        return next((card for card in cards if reading.uuid in (card.uuid, card.serial)), None)
    if reading.bus_id and any(card.pci_bus_id for card in cards):
        return next((card for card in cards if card.pci_bus_id == reading.bus_id), None)
    return next((card for card in cards if card.present and card.index == reading.index), None)


def _believed(card: Card, reading: Reading, problems: list[str]) -> Reading:
    """Return the reading without memory values that are impossible for this card."""
    total, used = reading.memory_total, reading.memory_used
    if total is not None and not card.memory <= total * _FAR_OFF <= card.memory * _FAR_OFF * _FAR_OFF:
        problems.append(f"card {card.index} ({card.uuid}) has {card.memory} bytes of memory, and not {total}")
        return replace(reading, memory_total=None, memory_used=None)
    if total is None and used is not None and used > card.memory:
        problems.append(f"card {card.index} ({card.uuid}) has {card.memory} bytes of memory, and {used} in use")
        return replace(reading, memory_used=None)
    return reading


def _filled(reading: Reading, more: Reading) -> Reading:
    gaps = {
        name: getattr(more, name)
        for name in reading.__struct_fields__
        if getattr(reading, name) is None and getattr(more, name) is not None
    }
    if "memory_used" in gaps and reading.memory_total is not None and gaps["memory_used"] > reading.memory_total:
        del gaps["memory_used"]
    return replace(reading, **gaps)
