"""Kunlunxin XPUs, through `xpu-smi`.

Called by the node driver. `xpu-smi -q -x` (XML) has all data; for versions of the tool without it,
`xpu-smi -q` (text) and then `xpu-smi -m` (columns) are read. Intel has a tool of the same name,
which is recognised and refused. Parsers are pure.

No listing shows XPULink. On the OAM board of eight, cards 0 to 3 and 4 to 7 are linked all to all
(a wing), and each card to its counterpart in the other wing; lanes are not counted, so each link is
one.
"""

import contextlib
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from hami_dra.api.hardware import Fault, IdentitySource, Provenance
from hami_dra.discovery.backend import PolledBackend
from hami_dra.discovery.errors import ToolFailed, Unexpected, Unreadable
from hami_dra.discovery.indented import entries
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.matching import Trace, trace_of
from hami_dra.discovery.memory import CARDS_FILE, CardMemory, Listing
from hami_dra.discovery.reading import MAX_INDEX, bus_id, bus_id_in, identity, memory, name, name_if_said, said, whole
from hami_dra.discovery.sysfs import SYS, placed
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.kunlunxin.publish import WING
from hami_dra.vendors.kunlunxin.records import KunlunxinRecord

VENDOR: Final = "kunlunxin"
TOOL: Final = Tool("xpu-smi", (Path("/usr/local/xpu/bin"), Path("/usr/local/xpu/tools"), Path("/opt/xre/bin")))
_XML: Final = "xpu-smi -q -x"
_QUERY: Final = "xpu-smi -q"
_COLUMNS: Final = "xpu-smi -m"

_BRAND: Final = "kunlunxin"
_OAM: Final = "OAM"
_BOARD: Final = 8
_FEWEST_COLUMNS: Final = 22
_DEEPEST: Final = 32
_MOST_DIGITS: Final = 4
_XPU_HEADING: Final = re.compile(r"XPU\s+(\S+)")

Values = Mapping[str, str]
"""Names of the XML elements below <xpu>, with / between, → text. The other listings are mapped to these names."""

_TEXT_NAMES: Final[Mapping[str, str]] = {
    "Product Name": "product_name",
    "Product Brand": "product_brand",
    "Product Architecture": "product_architecture",
    "Serial Number": "serial",
    "XPU UUID": "uuid",
    "GPU UUID": "uuid",
    "UUID": "uuid",
    "Minor Number": "minor_number",
    "OAM Id": "oam_id",
    "PCI/Bus Id": "pci/pci_bus_id",
    "Memory Usage/Total": "fb_memory_usage/total",
    "ECC Errors/Volatile/DRAM Uncorrectable": "ecc_errors/volatile/dram_uncorrectable",
    "Driver Version": "driver_version",
    "XPU-RT Version": "cuda_version",
    "Attached XPUs": "attached_xpus",
}


def backend(state_folder: Path | None = None, tool: Tool = TOOL, sys: Path = SYS) -> PolledBackend:
    memory = CardMemory(KunlunxinRecord, state_folder and state_folder / CARDS_FILE)
    return PolledBackend(VENDOR, lambda: read(tool, sys), witnesses=lambda: witnesses(tool), memory=memory)


def read(tool: Tool = TOOL, sys: Path = SYS) -> Listing:
    """Return all XPUs from the best listing that answers. Raises DiscoveryError with the answers of all."""
    refused: list[str] = []
    failed: set[str] = set()
    for rank, (listing, arguments, parse) in enumerate(_listings()):
        try:
            found = parse(tool.run(*arguments))
        except (ToolFailed, Unreadable) as error:
            refused.append(str(error))
            failed.add(listing)
            continue
        cards = [
            replace(card, provenance=replace(card.provenance, rank=rank, listed_by=(listing,)))
            for card in placed(found.cards, sys)
        ]
        return replace(
            found, cards=tuple(cards), problems=(*refused, *found.problems), failed=found.failed | frozenset(failed)
        )
    raise Unreadable("; ".join(refused))


def witnesses(tool: Tool) -> Iterator[Trace]:
    """Yield the devices in the listings that are read only if the best one fails or is incomplete."""
    for _, arguments, parse in _listings()[1:]:
        with contextlib.suppress(ToolFailed, Unreadable):
            found = parse(tool.run(*arguments))
            yield from (trace_of(card) for card in found.cards)
            yield from found.seen


def _listings() -> tuple[tuple[str, tuple[str, ...], Callable[[str], Listing]], ...]:
    """Return name, arguments, parser; those with most data first."""
    return (_XML, ("-q", "-x"), parse_xml), (_QUERY, ("-q",), parse_query), (_COLUMNS, ("-m",), parse_columns)


def parse_xml(text: str) -> Listing:
    """Parse the XML. Output that breaks off keeps the cards before the break. Raises Unreadable without a card."""
    machine, blocks, problems = xml_blocks(text)
    found = _listing(_XML, machine, blocks, problems)
    return replace(found, failed=frozenset({_XML})) if problems else found


def xml_blocks(text: str) -> tuple[Values, list[tuple[str, Values]], list[str]]:
    """Return the values of the machine, those of each card with its place in words, and problems.
    Raises Unreadable for another kind of text.
    """
    if "<!ENTITY" in text:
        # a few bytes could expand to gigabytes
        raise Unreadable(f"{_XML}: expected no entity declarations")
    machine: dict[str, str] = {}
    blocks: list[tuple[str, Values]] = []
    problems: list[str] = []
    try:
        for element in _below_root(text):
            if element.tag == "xpu":
                blocks.append((f"{_XML}, xpu {element.get('id', '')}", dict(_flat(element))))
            else:
                machine.setdefault(element.tag, (element.text or "").strip())
    except ET.ParseError as error:
        problems.append(f"{_XML}, line {error.position[0]}: expected well-formed XML, got: {error}")
    if not blocks and "xpu_smi_log" not in text:
        raise Unreadable("; ".join(problems) or f"{_XML}: expected the XML element xpu_smi_log, got none")
    return machine, blocks, problems


def parse_query(text: str) -> Listing:
    """Parse the text listing. Raises Unreadable without a card."""
    machine: dict[str, str] = {}
    blocks: list[tuple[str, dict[str, str]]] = []
    heading = ""
    for entry in entries(text):
        if entry.value is None:
            if len(entry.path) == 1 and (found := _XPU_HEADING.fullmatch(entry.path[0])):
                heading = entry.path[0]
                blocks.append((f"{_QUERY}, line {entry.number}, {heading}", {"pci/pci_bus_id": found[1]}))
            continue
        inside = entry.path[0] == heading
        values = blocks[-1][1] if inside and blocks else machine
        known = _TEXT_NAMES.get("/".join(entry.path[1:] if inside else entry.path))
        if known:
            values.setdefault(known, entry.value)
    if not blocks and "attached_xpus" not in machine:
        raise Unreadable(f"{_QUERY}: expected blocks that begin with XPU and a PCI bus id, got none")
    return _listing(_QUERY, machine, blocks, [])


def parse_columns(text: str) -> Listing:
    """Parse `xpu-smi -m`: one card a line, quoted as in a shell; no uuid, no driver. Raises Unreadable."""
    cards = []
    reader = ListingReader(_COLUMNS)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        serial = next(iter(line.split()[3:4]), "")
        with reader.line(number, line, Trace(serial=serial, bus_id=bus_id_in(line))):
            words = column_words(line)
            values = {
                "pci/pci_bus_id": words[0],
                "minor_number": words[2],
                "serial": words[3],
                "fb_memory_usage/total": f"{words[18]} MiB",
                "product_name": words[21],
            }
            cards.append(_record(values, {}, whole(words[1], at_most=MAX_INDEX)))
    return reader.settled(_on_board(cards))


def column_words(line: str) -> list[str]:
    """Split one line of `xpu-smi -m`. Raises Unexpected."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise Unexpected("quotes in pairs", line) from error
    if len(words) < _FEWEST_COLUMNS:
        raise Unexpected(f"{_FEWEST_COLUMNS} columns or more", line)
    return words


def _below_root(text: str) -> Iterator[ET.Element]:
    """Yield the complete elements right below the root. Raises ParseError after the last complete one."""
    parser: ET.XMLPullParser[Any] = ET.XMLPullParser(["start", "end"])
    parser.feed(text)
    # other shapes belong to events that are not requested
    events = cast(Iterator[tuple[str, ET.Element]], parser.read_events())
    depth = 0
    for event, element in events:
        depth += 1 if event == "start" else -1
        if depth > _DEEPEST:
            raise Unreadable(f"{_XML}: expected at most {_DEEPEST} elements inside each other")
        if event == "end" and depth == 1:
            yield element
    parser.close()


def _flat(element: ET.Element, above: str = "") -> Iterator[tuple[str, str]]:
    for child in reversed(element):  # of two with one name the first counts
        path = f"{above}{child.tag}"
        yield from _flat(child, f"{path}/")
        yield path, (child.text or "").strip()


def _listing(tool: str, machine: Values, blocks: Collection[tuple[str, Values]], problems: list[str]) -> Listing:
    cards = []
    reader = ListingReader(tool, problems)
    for position, (place, values) in enumerate(blocks):
        minor = said(values.get("minor_number"))
        trace = Trace(
            uuid=said(values.get("uuid")),
            serial=said(values.get("serial")),
            bus_id=bus_id_in(values.get("pci/pci_bus_id", "")),
            minor=int(minor) if minor.isdecimal() and len(minor) <= _MOST_DIGITS else None,
        )
        with reader.entry(place, trace):
            cards.append(_record(values, machine, position))
    attached, count = machine.get("attached_xpus", ""), len(blocks)
    if attached.isdecimal() and attached.strip("0") and attached != str(count):
        problems.append(f"{tool}: expected {attached} XPUs, as many as are attached, got {count}")
        if len(attached) <= _MOST_DIGITS and int(attached) > count:
            reader.seen.append(Trace())
    return reader.settled(_on_board(cards), none_is_fine=attached == "0" and not blocks)


def _record(values: Values, machine: Values, position: int) -> KunlunxinRecord:
    """Return the record. Its index is the minor number, which stays when a card vanishes; else `position`."""
    brand = said(values.get("product_brand"))
    if brand and brand.lower() != _BRAND:
        raise Unexpected("the product brand KUNLUNXIN (another vendor's tool is called xpu-smi too)", brand)
    minor = said(values.get("minor_number"))
    oam = said(values.get("oam_id"))
    serial = said(values.get("serial"))
    number = whole(minor, at_most=MAX_INDEX, what="a minor number") if minor else None
    return KunlunxinRecord(
        vendor=VENDOR,
        index=position if number is None else number,
        uuid=identity(said(values.get("uuid")) or serial, "a uuid or serial number"),
        provenance=Provenance(identified_by=IdentitySource.UUID if said(values.get("uuid")) else IdentitySource.SERIAL),
        product=name(said(values.get("product_name")), "a product name"),
        memory=memory(values.get("fb_memory_usage/total", "")),
        pci_bus_id=bus_id(values.get("pci/pci_bus_id", "")),
        minor=number,
        serial=name_if_said(serial),
        faults=tuple(_faults(values)),
        driver_version=name_if_said(machine.get("driver_version")),
        runtime_version=name_if_said(machine.get("cuda_version")),
        architecture=name_if_said(values.get("product_architecture")),
        oam_id=whole(oam, at_most=MAX_INDEX, what="an OAM id") if oam else None,
    )


def _faults(values: Values) -> Iterator[Fault]:
    errors = said(values.get("ecc_errors/volatile/dram_uncorrectable"))
    if errors.isdecimal() and errors.strip("0"):
        yield Fault(code="ecc-uncorrectable", message=f"xpu-smi counts {errors} uncorrectable DRAM errors since start")


def _on_board(cards: Iterable[KunlunxinRecord]) -> list[KunlunxinRecord]:
    """Return OAM cards with their links."""
    given = list(cards)
    linked = [card.index for card in given if _OAM in card.product.upper() and card.index < _BOARD]

    def peers(index: int) -> dict[int, int]:
        """Return the other cards of the wing, and the counterpart."""
        return {
            peer: 1
            for peer in linked
            if peer != index and (peer // WING == index // WING or peer % WING == index % WING)
        }

    return [replace(card, links=peers(card.index)) if card.index in linked else card for card in given]
