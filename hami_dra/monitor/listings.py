"""Readings by running a vendor's tool once or twice and joining its listings, and those of one row
of a table. For vendors with a command line tool.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.readings import (
    Reading,
    Sample,
    ToolReport,
    Words,
    amount,
    celsius,
    joined,
    percent,
    share_of,
    watts,
)

T = TypeVar("T")

Listing = tuple[tuple[str, ...], Callable[[str], ToolReport]]
"""Arguments of the tool, and the parser of its output."""


class Columns(Struct, frozen=True):
    """Columns of a table with a row for each card. Their units are in a row of their own."""

    memory: str
    memory_used: str
    """Percent of `memory`."""
    utilization: str
    temperature: str
    power: str


def row_reading(
    columns: Columns, row: Mapping[str, str], units: Mapping[str, str], words: Words, *, index: int, bus_id: str = ""
) -> Reading:
    """Return the reading of a row. `units`: column → unit; an absent one is the usual one."""

    def value(column: str, read: Callable[[str, str], T]) -> T | None:
        return words.read(column, row.get(column), lambda text: read(text, units.get(column, "")))

    total = value(columns.memory, amount)
    return Reading(
        index=index,
        bus_id=bus_id,
        memory_total=total,
        memory_used=share_of(total, value(columns.memory_used, percent)),
        utilization=value(columns.utilization, percent),
        temperature=value(columns.temperature, celsius),
        power=value(columns.power, watts),
    )


def reported(reader: ListingReader, readings: Sequence[Reading], expected: str = "") -> ToolReport:
    """Return the readings of an output. Raises Unreadable if something is expected and nothing could be read."""
    if expected:
        reader.require(readings, expected)
    return ToolReport(tuple(readings), tuple(reader.problems))


class ListingSampler:
    """Implements `hami_dra.monitor.readings.Sampler`.

    One successful listing is enough; more listings add values. If two listings report a value, the
    earlier listing counts.
    """

    def __init__(self, tool: Tool, listings: Sequence[Listing]) -> None:
        self.source = tool.name
        self._tool = tool
        self._listings = listings

    def sample(self, cards: Sequence[Card]) -> Sample[Reading]:
        """Read the cards. Raises the first listing's error if none succeeds."""
        reports: list[ToolReport] = []
        refused: list[DiscoveryError] = []
        for arguments, parse in self._listings:
            try:
                reports.append(parse(self._tool.run(*arguments)))
            except DiscoveryError as error:
                refused.append(error)
        if not reports:
            raise refused[0]
        return joined(cards, [*reports, ToolReport((), tuple(map(str, refused)))])

    def close(self) -> None:
        """Do nothing: no resources are held."""
