"""Enflame GCUs, through `efsmi`.

Called by the node driver. `efsmi -q` has nearly all data (older drivers under other names); the
table of plain `efsmi` adds the virtualisation of a card and fills gaps; `efsmi --topo -m` has links
if this version supports it. Parsers are pure.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api.hardware import DrivenCard, Fault, IdentitySource, Provenance
from hami_dra.discovery.backend import PolledBackend
from hami_dra.discovery.errors import DiscoveryError, Unexpected, shown
from hami_dra.discovery.indented import Entry, entries
from hami_dra.discovery.listing_reader import ListingReader, trace_in
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.matrix import Matrix, parse_matrix
from hami_dra.discovery.memory import CARDS_FILE, CardMemory, Listing
from hami_dra.discovery.reading import MAX_INDEX, bus_id, cells_of, identity, memory, name, name_if_said, said, whole
from hami_dra.discovery.sysfs import SYS, placed
from hami_dra.discovery.tool import Tool

VENDOR: Final = "enflame"
TOOL: Final = Tool("efsmi", (Path("/usr/local/efsmi"), Path("/opt/tops/bin")))
_QUERY: Final = "efsmi -q"
_TABLE: Final = "efsmi"
_TOPOLOGY: Final = "efsmi --topo -m"

_WITHOUT_MATRIX: Final = 1
_WITHOUT: Final[Mapping[str, int]] = {_TABLE: 2, _QUERY: 4}
"""Ranks of a record (`Provenance.rank`), by the listings in which the card is missing."""

_DEVICE: Final = re.compile(r"DEV ID\s+(\S+)")
_FIRST: Final = re.compile(r"(\d+)\s+(.+)")
_SIZE: Final = re.compile(r"(\d+\s*[MG]iB).*")
_DRIVER: Final = re.compile(r"Driver Ver:\s*(\S+)")
_LINK: Final = "ESL|LARE|GCU-?LINK"
_MAKER: Final = "Enflame "
"""The table of newer versions puts it before the product; one card should have one name."""


Values = Mapping[tuple[str, str], str]
"""(section, key) → value: `Dev` of PCIe Info differs from that of Device Info."""


class ListedDevice(Struct, frozen=True):
    """A card in one listing; empty = nothing. Values as written, after a first check of their form."""

    index: int
    product: str = ""
    uuid: str = ""
    serial: str = ""
    bus_id: str = ""
    memory: int = 0
    driver_version: str = ""
    faults: tuple[Fault, ...] = ()


class Devices(Struct, frozen=True):
    """All cards in one listing."""

    devices: Mapping[int, ListedDevice] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    seen: tuple[Trace, ...] = ()
    """Traces of unreadable entries."""


def backend(state_folder: Path | None = None, tool: Tool = TOOL, sys: Path = SYS) -> PolledBackend:
    memory = CardMemory(DrivenCard, state_folder and state_folder / CARDS_FILE)
    return PolledBackend(VENDOR, lambda: read(tool, sys), memory=memory)


def read(tool: Tool = TOOL, sys: Path = SYS) -> Listing:
    """Return all Enflame cards of this machine. Raises DiscoveryError."""
    query = parse_query(tool.run("-q"))
    failed: set[str] = set()
    try:
        table = parse_table(tool.run())
    except DiscoveryError as error:
        table = Devices(problems=(str(error),))
        failed.add(_TABLE)
    matrix: Matrix | None = None
    if len(query.devices) > 1:
        # most versions do not report it; the distances then come from the kernel
        with contextlib.suppress(DiscoveryError):
            matrix = parse_topology(tool.run("--topo", "-m"))
    found = join(query, table, matrix)
    return replace(found, cards=tuple(placed(found.cards, sys)), failed=frozenset(failed))


def join(query: Devices, table: Devices, matrix: Matrix | None = None) -> Listing:
    """Join both listings to cards. Raises Unreadable when no card has an identity, a name and memory."""
    problems = [*query.problems, *table.problems, *(matrix.problems if matrix else ())]
    reader = ListingReader(_QUERY, problems, [*query.seen, *table.seen])
    rows = dict(table.devices)
    pairs: list[tuple[ListedDevice, ListedDevice, tuple[str, ...]]] = []
    for _, device in sorted(query.devices.items()):
        row = rows.pop(found, None) if (found := _row_of(device, rows)) is not None else None
        pairs.append((device, row or device, (_QUERY, _TABLE) if row else (_QUERY,)))
    pairs += [(row, row, (_TABLE,)) for _, row in sorted(rows.items())]
    cards = []
    for device, row, shown_by in pairs:
        serial, address = device.serial or row.serial, device.bus_id or row.bus_id
        trace = Trace(uuid=device.uuid, serial=serial, bus_id=address, index=device.index)
        with reader.entry(f"{shown_by[0]}, DEV ID {device.index}", trace):
            cards.append(_record(device, row, matrix, shown_by))
    return reader.settled(cards)


def _row_of(device: ListedDevice, rows: Mapping[int, ListedDevice]) -> int | None:
    """Return the table's row of the card. Numbers may change between listings: they count without other keys only."""
    for number, row in rows.items():
        if device.serial and row.serial == device.serial:
            return number
    for number, row in rows.items():
        if device.bus_id and row.bus_id == device.bus_id:
            return number
    same_number = rows.get(device.index)
    if same_number is None or (device.serial and same_number.serial) or (device.bus_id and same_number.bus_id):
        return None
    return device.index


def parse_query(text: str) -> Devices:
    """Parse `efsmi -q`, whole or with `-d`. Raises Unreadable when no device is listed."""
    reader = ListingReader(_QUERY)
    devices = {}
    for index, values in blocks(text, reader).items():
        uuid, serial = (values.get(("Device Info", name), "") for name in ("Dev UUID", "Dev SN"))
        with reader.entry(f"{_QUERY}, DEV ID {index}", Trace(uuid=uuid, serial=serial, index=index)):
            devices[index] = _device(index, values)
    reader.require(devices, "devices, got none")
    return Devices(devices, tuple(reader.problems), tuple(reader.seen))


def blocks(text: str, reader: ListingReader) -> dict[int, Values]:
    """Return the values of each device of `efsmi -q`. Raises Unreadable when there is none."""
    found_blocks: dict[int, list[Entry]] = {}
    block: list[Entry] | None = None
    for entry in entries(text):
        if entry.value is None and (found := _DEVICE.fullmatch(entry.path[-1])):
            block = None
            with reader.line(entry.number, entry.path[-1], Trace()):
                block = found_blocks.setdefault(whole(found[1], at_most=MAX_INDEX), [])
        elif block is not None and entry.value is not None:
            block.append(entry)
    reader.require(found_blocks, "blocks that begin with DEV ID 0, got none")
    return {index: _values(block) for index, block in found_blocks.items()}


def parse_table(text: str) -> Devices:
    """Parse the table of plain `efsmi`: two lines for each card. Raises Unreadable when no card can be read."""
    driver = _DRIVER.search(text)
    version = name_if_said(driver[1]) if driver else ""
    devices: dict[int, ListedDevice] = {}
    reader = ListingReader(_TABLE)
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        cells = cells_of(line)
        if len(cells) < 3 or not _FIRST.fullmatch(cells[0]):
            continue
        _, below = next(lines, (0, ""))
        with reader.line(number, line, trace_in(line)):
            device = _table_device(cells, cells_of(below), version)
            devices.setdefault(device.index, device)
    reader.require(devices, "a table of devices, got none")
    return Devices(devices, tuple(reader.problems), tuple(reader.seen))


def parse_topology(text: str) -> Matrix:
    """Parse the topology as other tools' matrix, because none of its outputs is public. Raises Unreadable."""
    return parse_matrix(text, _TOPOLOGY, devices=("GCU", "DEV", "GPU"), link=_LINK)


def _values(block: Iterable[Entry]) -> Values:
    values: dict[tuple[str, str], str] = {}
    for entry in block:
        section = entry.path[-2] if len(entry.path) > 1 else ""
        values.setdefault((section, entry.path[-1]), said(entry.value))
    return values


def value_of(values: Values, section: str, *keys: str) -> str:
    """Return what is said under the first of the keys that says something, or an empty text."""
    return next((found for key in keys if (found := values.get((section, key), ""))), "")


def _device(index: int, values: Values) -> ListedDevice:
    address = [value_of(values, "PCIe Info", key) for key in ("Domain", "Bus", "Dev", "Func")]
    size = value_of(values, "Device Mem Info", "Total Size", "Mem Size")
    return ListedDevice(
        index=index,
        product=value_of(values, "Device Info", "Dev Name"),
        uuid=value_of(values, "Device Info", "Dev UUID"),
        serial=value_of(values, "Device Info", "Dev SN"),
        bus_id=bus_id("{}:{}:{}.{}".format(*address)) if all(address) else "",
        memory=memory(size) if size else 0,
        driver_version=name_if_said(value_of(values, "Driver Info", "Ver")),
        faults=tuple(_faults(index, values)),
    )


def _faults(index: int, values: Values) -> Iterable[Fault]:
    for section, key, good, code in (
        ("Device Info", "Health", "true", "unhealthy"),
        ("RMA Info", "Flags", "false", "rma"),
        ("Power Cable", "Status", "normal", "power-cable"),
    ):
        value = values.get((section, key), "")
        if value and value.lower() != good:
            yield Fault(code=code, message=f"{_QUERY} says {section}, {key}: {shown(value)} of DEV ID {index}")


def _table_device(cells: list[str], below: list[str], version: str) -> ListedDevice:
    number, _, product = cells[0].partition(" ")
    size = _SIZE.fullmatch(below[1]) if len(below) > 1 else None
    if not size:
        raise Unexpected("a second line with memory such as 49120MiB", " | ".join(below))
    return ListedDevice(
        index=whole(number, at_most=MAX_INDEX),
        product=product,
        serial=below[2].rpartition(" ")[2] if len(below) > 2 else "",
        bus_id=bus_id(cells[2].partition(" ")[0]),
        memory=memory(size[1]),
        driver_version=version,
    )


def _record(device: ListedDevice, row: ListedDevice, matrix: Matrix | None, shown_by: tuple[str, ...]) -> DrivenCard:
    """Return the record. `row`: the same card in the table, which fills the gaps."""
    size = device.memory or row.memory
    if not size:
        raise Unexpected("an amount of memory (Device Mem Info, Total Size)", "")
    serial = device.serial or row.serial
    missing = sum(weight for listing, weight in _WITHOUT.items() if listing not in shown_by)
    return DrivenCard(
        vendor=VENDOR,
        index=device.index,
        uuid=identity(device.uuid or serial, "a uuid (Dev UUID) or serial number (Dev SN)"),
        provenance=Provenance(
            identified_by=IdentitySource.UUID if device.uuid else IdentitySource.SERIAL,
            rank=missing + _WITHOUT_MATRIX * (matrix is None),
            listed_by=shown_by,
        ),
        product=name(device.product or row.product, "a product (Dev Name)").removeprefix(_MAKER),
        memory=size,
        pci_bus_id=device.bus_id or row.bus_id,
        links=matrix.links.get(device.index, {}) if matrix else {},
        distances=matrix.distances.get(device.index, {}) if matrix else {},
        serial=name_if_said(serial),
        faults=device.faults,
        driver_version=device.driver_version or row.driver_version,
    )
