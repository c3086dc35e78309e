"""The table of `npu-smi info`, which discovery and readings have in common. Pure.

Two lines for each chip; the words above them say what is in the cells, and differ by generation:

| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 5     910B4               | OK            | 89.9        39                0    / 0             |
| 0                         | 0000:41:00.0  | 0           0    / 0          2922 / 32768         |

Boards of the 310P have a word more below `NPU` (`Chip Device`, newer ones `Chip Phy-ID`), which is
the number of the chip on the machine, and memory of one kind only. The table of processes follows.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from hami_dra.discovery.errors import Unexpected
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.reading import MAX_INDEX, bus_id, bus_id_in, cells_of, name, name_if_said, whole

INFO: Final = "npu-smi info"
_VERSION: Final = re.compile(r"Version:\s*(\S+)")
_USAGE: Final = re.compile(r"([0-9]+)\s*/\s*([0-9]+)")
_MOST_NPU: Final = 1 << 24
"""Boards are numbered by their slots: 32768 is common."""
_MOST_MIB: Final = 1 << 24
_NUMBERED: Final = ("device", "phy-id")


class ChipRow(Struct, frozen=True, kw_only=True):
    """One chip; texts as written."""

    index: int
    """Its number on the machine, and in the name of its device node."""
    npu: int
    """Number of its board in npu-smi."""
    chip: int
    """Its number on the board."""
    name: str
    """`910B4`."""
    health: str
    bus_id: str
    power: str
    """Watts, or `NA`."""
    temperature: str
    """Degrees Celsius."""
    utilization: str
    """Percent of the AI cores."""
    memory_used: int
    """MiB."""
    memory: int
    """MiB: HBM, on chips that have it."""


class ChipTable(Struct, frozen=True):
    rows: tuple[ChipRow, ...]
    driver_version: str = ""
    problems: tuple[str, ...] = ()
    seen: tuple[Trace, ...] = ()
    """Traces of unreadable rows."""
    complete: bool = False
    """The table of processes follows, so that no row is cut off."""


def parse_table(text: str) -> ChipTable:
    """Parse `npu-smi info`. Raises Unreadable when no chip can be read."""
    found = _VERSION.search(text)
    above: list[str] = []
    rows: list[ChipRow] = []
    reader = ListingReader(INFO)
    for (number, line), (_, below) in _pairs(text):
        words = [word.lower() for cell in cells_of(below) for word in cell.split()]
        if words[:1] == ["chip"]:
            above = words
        elif above:
            with reader.line(number, line, Trace(bus_id=bus_id_in(below))):
                rows.append(_row(above, line, below))
    reader.require(rows, "a table with the columns NPU, Chip and Bus-Id, got none")
    version = name_if_said(found[1]) if found else ""
    complete = any(_begins_processes(cells_of(line)) for line in text.splitlines())
    return ChipTable(tuple(rows), version, tuple(reader.problems), tuple(reader.seen), complete)


def _pairs(text: str) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """Yield lines of the table two by two, with their numbers, up to the table of processes."""
    before: tuple[int, str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        cells = cells_of(line)
        if _begins_processes(cells):
            return
        if len(cells) != 3:
            before = None
        elif before is None:
            before = number, line
        else:
            yield before, (number, line)
            before = None


def _begins_processes(cells: Sequence[str]) -> bool:
    return len(cells) > 1 and cells[1].lower().startswith("process id")


def _row(above: Sequence[str], line: str, below: str) -> ChipRow:
    """Return one chip. `above`: the words in the second line of the header, in lower case."""
    (board, health, state), (chip, address, usage) = cells_of(line), cells_of(below)
    npu, _, product = board.partition(" ")
    numbers = chip.split()
    states = state.split()
    if len(states) < 2:
        raise Unexpected("watts and degrees", state)
    first, _, rest = usage.partition(" ")
    usages = _USAGE.findall(rest)
    kinds = sum(word.endswith("-usage(mb)") for word in above)
    if not numbers or len(usages) != max(kinds, 1):
        raise Unexpected("a number of a chip, and used / total MB of each memory", f"{chip} | {usage}")
    with_number = any(word in above for word in _NUMBERED)
    if with_number and len(numbers) < 2:
        raise Unexpected("numbers of a chip on its board and on the machine", chip)
    # the last is HBM, where the chip has it
    used, total = usages[-1]
    board_number = whole(npu, at_most=_MOST_NPU, what="a number of an NPU")
    return ChipRow(
        index=whole(numbers[1] if with_number else npu, at_most=MAX_INDEX),
        npu=board_number,
        chip=whole(numbers[0], at_most=MAX_INDEX),
        name=name(product, "the name of a chip"),
        health=health,
        bus_id=bus_id(address),
        power=states[0],
        temperature=states[1],
        utilization=first,
        memory_used=whole(used, at_most=_MOST_MIB),
        memory=whole(total, at_most=_MOST_MIB),
    )
