"""Readings of Enflame GCUs, from `efsmi --dmon` and, for memory errors, `efsmi -q`. Pure parsers.

`--dmon` runs for one sample (`-c 1`), so that it ends on its own. Its columns: `DUsed` is the
utilisation of the card, `Sip` that of its processors, `MUsed` memory in use in percent of `Mem`.
"""

from typing import Final

from msgspec.structs import replace

from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.reading import MAX_INDEX, whole
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.listings import Columns, ListingSampler, reported, row_reading
from hami_dra.monitor.readings import Reading, ToolReport, Words, amount, celsius, count, percent, row_of, watts
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.enflame.discovery import Values, blocks, value_of

TOOL: Final = replace(enflame.TOOL, timeout=10.0)
_DMON: Final = "efsmi --dmon"
_QUERY: Final = "efsmi -q"
_COLUMNS: Final = Columns(memory="Mem", memory_used="MUsed", utilization="DUsed", temperature="DTemp", power="Pwr")


def sampler(tool: Tool = TOOL) -> ListingSampler:
    return ListingSampler(tool, ((("--dmon", "-c", "1"), parse_dmon), (("-q",), parse_query)))


def parse_dmon(text: str) -> ToolReport:
    """Parse two lines of names and units that begin with `*`, then a row for each card.

    Versions of the tool differ in their columns. Raises Unreadable.
    """
    names: list[str] = []
    units: dict[str, str] = {}
    readings: list[Reading] = []
    reader = ListingReader(_DMON)
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.split()
        if line.lstrip().startswith("*Dev"):
            names, units = [cells[0].lstrip("*"), *cells[1:]], {}
        elif line.lstrip().startswith("*Idx") and len(cells) == len(names):
            units = dict(zip(names, cells, strict=True))
        elif names and cells and not line.lstrip().startswith(("-", "*")):
            with reader.line(number, line):
                row, words = row_of(names, cells, "words", " "), Words(f"{_DMON}, line {number}", reader.problems)
                card = whole(row["Dev"], at_most=MAX_INDEX, what="a number of a card")
                readings.append(row_reading(_COLUMNS, row, units, words, index=card))
    return reported(reader, readings, "a table that begins with *Dev, got none")


def parse_query(text: str) -> ToolReport:
    """Parse `efsmi -q` of newer and older drivers. Raises Unreadable.

    Double bit errors are the uncorrected ones; the tool does not report others.
    """
    reader = ListingReader(_QUERY)
    devices = blocks(text, reader).items()
    return reported(
        reader,
        [_device(index, values, Words(f"{_QUERY}, DEV ID {index}", reader.problems)) for index, values in devices],
    )


def _device(index: int, values: Values, words: Words) -> Reading:
    memory = "Device Mem Info"
    total = words.read("Total Size", value_of(values, memory, "Total Size", "Mem Size"), amount)
    used = words.read("Used Size", value_of(values, memory, "Used Size", "Mem Usage"), amount)
    return Reading(
        index=index,
        memory_total=total,
        memory_used=words.within(used, total),
        utilization=words.read("GCU Usage", value_of(values, "Device Usage Info", "GCU Usage"), percent),
        temperature=words.read("GCU Temp", value_of(values, "Temperature Info", "GCU Temp"), celsius),
        power=words.read("Cur Power", value_of(values, "Power Info", "Cur Power"), watts),
        ecc_uncorrected=words.read("Total DBE", value_of(values, "RMA Info", "Total DBE"), count),
    )
