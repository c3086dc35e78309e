"""MetaX GPUs, through `mx-smi`.

Called by the node driver. Three listings are joined: `mx-smi -L` (cards, uuids, state), `mx-smi`
(memory, version of the driver; its table has changed with the versions, so it is read by its header)
and `mx-smi topo -m` (MetaXLink, PCIe). If the table has no memory for a card, `mx-smi dmon` is
read. Parsers are pure: text in, records out.
"""

import contextlib
import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api.hardware import DrivenCard, Fault, Provenance
from hami_dra.discovery.backend import PolledBackend
from hami_dra.discovery.errors import DiscoveryError, Unexpected, Unreadable
from hami_dra.discovery.listing_reader import ListingReader, trace_in
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.matrix import Matrix, parse_matrix
from hami_dra.discovery.memory import CARDS_FILE, CardMemory, Listing
from hami_dra.discovery.reading import (
    MAX_INDEX,
    bus_id,
    bus_id_in,
    cells_of,
    identity,
    memory,
    name,
    name_if_said,
    said,
    whole,
)
from hami_dra.discovery.sysfs import SYS, placed
from hami_dra.discovery.tool import Tool

VENDOR: Final = "metax"
TOOL: Final = Tool("mx-smi", (Path("/opt/mxdriver/bin"), Path("/opt/maca/bin"), Path("/opt/mxn100/bin")))
_LIST: Final = "mx-smi -L"
_TABLE: Final = "mx-smi"
_TOPOLOGY: Final = "mx-smi topo -m"
_DMON: Final = "mx-smi dmon"
_MEMORY_QUERY: Final = ("dmon", "--show-memory", "--total-memory", "--show-bdf", "--format", "csv", "-c", "1")

_LISTED: Final = re.compile(r"GPU#\s*(\d+)\s+(\S+)\s+(\S+)\s+(.*?)\s*\(UUID:\s*(\S+)\)")
_LISTED_INDEX: Final = re.compile(r"GPU#\s*(\d{1,4})\b")
_LISTED_UUID: Final = re.compile(r"UUID:\s*([!-~]{1,64}?)\)")
_ATTACHED: Final = re.compile(r"Attached GPUs\s*:\s*(\d{1,4})\b")
_VERSION: Final = re.compile(r"Kernel Mode Driver Version:\s*(\S+)")
_AVAILABLE: Final = "available"
_WITHOUT_MATRIX: Final = 1
_WITHOUT_ROW: Final = 2
"""Ranks of a record (`Provenance.rank`)."""


class Listed(Struct, frozen=True):
    """One line of `mx-smi -L`."""

    index: int
    model: str
    bus_id: str
    state: str
    """`Available`, or another state of the tool; empty = not given."""
    uuid: str


class TableRow(Struct, frozen=True):
    """One GPU in the table of `mx-smi`."""

    index: int
    product: str
    bus_id: str
    memory: int
    """Bytes."""


class Table(Struct, frozen=True):
    rows: Mapping[int, TableRow] = field(default_factory=dict)
    driver_version: str = ""
    problems: tuple[str, ...] = ()
    seen: tuple[Trace, ...] = ()
    """Traces of unreadable rows."""


def backend(state_folder: Path | None = None, tool: Tool = TOOL, sys: Path = SYS) -> PolledBackend:
    memory = CardMemory(DrivenCard, state_folder and state_folder / CARDS_FILE)
    return PolledBackend(VENDOR, lambda: read(tool, sys), witnesses=lambda: witnesses(tool), memory=memory)


def read(tool: Tool = TOOL, sys: Path = SYS) -> Listing:
    """Return all MetaX cards of this machine. Raises DiscoveryError."""
    reader = ListingReader(_LIST)
    problems = reader.problems
    listed = parse_list(tool.run("-L"), reader)
    failed: set[str] = set()
    try:
        table = parse_table(tool.run())
    except DiscoveryError as error:
        table = Table(problems=(str(error),))
        failed.add(_TABLE)
    sizes = {row.bus_id: row.memory for row in table.rows.values()}
    memory_known = not failed
    if any(line.bus_id not in sizes for line in listed):
        try:
            found, troubles = parse_memory(tool.run(*_MEMORY_QUERY))
            sizes = found | sizes
            problems += troubles
            memory_known = True
        except DiscoveryError as error:
            problems.append(str(error))
    matrix: Matrix | None = None
    try:
        matrix = parse_topology(tool.run("topo", "-m")) if len(listed) > 1 else Matrix({}, {})
    except DiscoveryError as error:
        problems.append(str(error))
    cards = []
    for line in listed:
        if line.bus_id in sizes:
            cards.append(_record(line, table, sizes[line.bus_id], matrix))
        else:
            problems.append(f"{_TABLE}: expected the memory of GPU {line.index} ({line.bus_id}), got none")
            # if no listing of memory answers, nothing is wrong with this card alone
            faults = _faults(line) or (None if memory_known else ())
            reader.seen.append(Trace(uuid=line.uuid, bus_id=line.bus_id, index=line.index, faults=faults))
    named = {line.bus_id for line in listed}
    rows = [Trace(bus_id=row.bus_id, index=row.index) for row in table.rows.values() if row.bus_id not in named]
    reader.seen += [*rows, *table.seen]
    problems += [*table.problems, *(matrix.problems if matrix else ())]
    return replace(reader.settled(placed(cards, sys), none_is_fine=not listed), failed=frozenset(failed))


def witnesses(tool: Tool) -> tuple[Trace, ...]:
    """Return the devices in the listing that is read only if the others are incomplete."""
    with contextlib.suppress(DiscoveryError):
        sizes, _ = parse_memory(tool.run(*_MEMORY_QUERY))
        return tuple(Trace(bus_id=address) for address in sizes)
    return ()


def parse_list(text: str, reader: ListingReader) -> list[Listed]:
    """Return the cards. Each line of a GPU, and each attached GPU without a line, counts as seen if
    it cannot be read. Raises Unreadable when no line can be read.
    """
    listed = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip().startswith("GPU#"):
            index, uuid = _LISTED_INDEX.match(line.strip()), _LISTED_UUID.search(line)
            trace = Trace(uuid=uuid[1] if uuid else "", bus_id=bus_id_in(line), index=int(index[1]) if index else None)
            with reader.line(number, line, trace):
                listed.append(_listed(line))
    reader.require(listed, "lines that begin with GPU#0, got none")
    attached = _ATTACHED.search(text)
    if attached and int(attached[1]) > len(listed) + len(reader.seen):
        reader.seen.append(Trace())
    return listed


def parse_table(text: str) -> Table:
    """Parse the table. Raises Unreadable when there is no table or no row of it can be read."""
    version = _VERSION.search(text)
    header: tuple[list[str], list[str]] | None = None
    rows: dict[int, TableRow] = {}
    reader = ListingReader(_TABLE)
    for group in _groups(text):
        first = [cell.lower() for cell in cells_of(group[0][1])]
        if len(group) > 1 and "bus-id" in first:
            header = (first, [cell.lower() for cell in cells_of(group[1][1])])
        elif header and len(group) > 1:
            number, line = group[0]
            with reader.line(number, line, trace_in(line)):
                row = _table_row(header, cells_of(line), cells_of(group[1][1]))
                rows.setdefault(row.index, row)
    reader.require(rows, "a table with the columns Bus-id and Memory-Usage, got none")
    return Table(rows, name_if_said(version[1]) if version else "", tuple(reader.problems), tuple(reader.seen))


def parse_memory(text: str) -> tuple[dict[str, int], list[str]]:
    """Parse `mx-smi dmon` as CSV (names, units, then one row per die) → PCI bus id → bytes. Raises Unreadable."""
    reader = ListingReader(_DMON)
    names, units, rows = dmon_rows(text, {"total", "bdfid"}, "the columns total and bdfid, got none")
    sizes = {}
    for number, line, cells in rows:
        with reader.line(number, line):
            row = dict(zip(names, cells, strict=False))
            sizes[bus_id(row.get("bdfid", ""))] = memory(row.get("total", ""), units.get("total", ""))
    return sizes, reader.problems


def dmon_rows(
    text: str, columns: set[str], expected: str
) -> tuple[list[str], dict[str, str], list[tuple[int, str, list[str]]]]:
    """Return the names of the columns, their units, and the number, text and cells of each row of
    `mx-smi dmon` as CSV. Raises Unreadable without the `columns`.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if "," in line]
    table = [[cell.strip() for cell in row] for row in csv.reader((line for _, line in lines), quoting=csv.QUOTE_NONE)]
    if len(table) < 2 or not columns <= set(table[0]):
        raise Unreadable(f"{_DMON}: expected {expected}")
    rows = [(number, line, cells) for (number, line), cells in zip(lines[2:], table[2:], strict=True)]
    return table[0], dict(zip(table[0], table[1], strict=False)), rows


def parse_topology(text: str) -> Matrix:
    """Parse the topology. `MX` is a MetaXLink; its number of lanes is not given. Raises Unreadable."""
    return parse_matrix(text, _TOPOLOGY, devices=("GPU",), link="MX")


def _listed(line: str) -> Listed:
    found = _LISTED.fullmatch(line.strip())
    if not found:
        raise Unexpected("GPU#<n> <model> <bus id> <state> (UUID: <uuid>)", line)
    return Listed(
        index=whole(found[1], at_most=MAX_INDEX),
        model=name(found[2], "a model"),
        bus_id=bus_id(found[3]),
        state=said(found[4]),
        uuid=identity(found[5], "a uuid"),
    )


def _groups(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of table lines (`| ... |`) between rules, up to the table of processes."""
    group: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if bare.startswith("|") and bare.strip("|-=+ "):
            group.append((number, bare))
        elif group:
            yield group
            group = []
        if bare.lower().startswith("| process"):
            return
    if group:
        yield group


def _table_row(header: tuple[list[str], list[str]], first: list[str], second: list[str]) -> TableRow:
    """Return a row, given its two lines. Since 2.2.9 the first column is the board and the second the GPU."""
    names, names_below = header
    if len(first) != len(names) or len(second) != len(names_below) or "memory-usage" not in names_below:
        raise Unexpected(f"{len(names)} cells and {len(names_below)} below them", " | ".join(first + second))
    number, _, product = first[0].partition(" ")
    gpu = first[1].partition(" ")[0] if names[0].startswith("board") else number
    usage = second[names_below.index("memory-usage")]
    _, _, total = said(usage).partition("/")
    if not total:
        raise Unexpected("used/total MiB", usage)
    return TableRow(
        index=whole(gpu, at_most=MAX_INDEX),
        product=name(product, "the name of a GPU"),
        bus_id=bus_id(first[names.index("bus-id")]),
        memory=memory(total),
    )


def _record(line: Listed, table: Table, size: int, matrix: Matrix | None) -> DrivenCard:
    row = next((row for row in table.rows.values() if row.bus_id == line.bus_id), None)
    return DrivenCard(
        vendor=VENDOR,
        index=line.index,
        uuid=line.uuid,
        product=row.product if row else line.model,
        memory=size,
        pci_bus_id=line.bus_id,
        provenance=Provenance(
            rank=_WITHOUT_ROW * (row is None) + _WITHOUT_MATRIX * (matrix is None),
            listed_by=(_LIST,) if row is None else (_LIST, _TABLE),
        ),
        links=matrix.links.get(line.index, {}) if matrix else {},
        distances=matrix.distances.get(line.index, {}) if matrix else {},
        faults=_faults(line),
        driver_version=table.driver_version,
    )


def _faults(line: Listed) -> tuple[Fault, ...]:
    healthy = line.state.lower() in {"", _AVAILABLE}
    message = f'{_LIST} calls GPU {line.index} "{line.state}"'
    return () if healthy else (Fault(code="unavailable", message=message),)
