"""AWS Neuron devices, through `neuron-ls` and the kernel driver's files below `/sys/devices/virtual/neuron_device`.

Called by the node driver. `neuron-ls --json-output` has devices, memory, neighbours and PCI; the
files have names, serial numbers and error counts, and replace the tool if it is missing. Parsers
are pure.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from msgspec.structs import replace

from hami_dra.api.hardware import IdentitySource, Provenance
from hami_dra.discovery.backend import PolledBackend
from hami_dra.discovery.errors import DiscoveryError, Unexpected, Unreadable, shown
from hami_dra.discovery.listing_reader import ListingReader, trace_in
from hami_dra.discovery.matching import Trace, trace_of
from hami_dra.discovery.memory import CARDS_FILE, CardMemory, Listing
from hami_dra.discovery.reading import MAX_BYTES, MAX_INDEX, bus_id, bus_id_in, cells_of, memory, said, whole
from hami_dra.discovery.sysfs import SYS, placed
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.neuron.device_files import FILES, DeviceFiles, MachineFacts, machine_facts, read_files
from hami_dra.vendors.neuron.instances import device_of, instance_of
from hami_dra.vendors.neuron.records import NeuronRecord

VENDOR: Final = "neuron"
TOOL: Final = Tool("neuron-ls", (Path("/opt/aws/neuron/bin"),))
_JSON: Final = "neuron-ls --json-output"
_TABLE: Final = "neuron-ls"
_WITHOUT_NAME: Final = 1
_WITHOUT_LISTING: Final = 2
"""Ranks of a record (`Provenance.rank`)."""
_MAX_CORES: Final = 256
_UNKNOWN_PRODUCT: Final = "Neuron"

_GIB: Final = 1 << 30


def backend(state_folder: Path | None = None, tool: Tool = TOOL, sys: Path = SYS) -> PolledBackend:
    memory = CardMemory(NeuronRecord, state_folder and state_folder / CARDS_FILE)
    return PolledBackend(VENDOR, lambda: read(tool, sys), witnesses=lambda: witnesses(tool), memory=memory)


def read(tool: Tool = TOOL, sys: Path = SYS) -> Listing:
    """Return all Neuron devices. Raises DiscoveryError with the tool's text without files."""
    files = read_files(sys)
    refused: list[DiscoveryError] = []
    failed: set[str] = set()
    found, listing, rank = Listing(()), "", 0
    for listing, arguments, parse in _LISTINGS:
        try:
            found = parse(tool.run(*arguments))
        except DiscoveryError as error:
            refused.append(error)
            failed.add(listing)
            rank += _WITHOUT_LISTING
        else:
            break
    else:
        if not files:
            raise refused[0]
        listing, found = FILES, from_files(files)
    if not files:
        failed.add(FILES)
    about = machine_facts(sys)
    shown_by = tuple(dict.fromkeys([listing, FILES] if files else [listing]))
    cards = [
        _completed(card, files, about, Provenance(rank=rank, listed_by=shown_by))
        for card in found.cards
        if isinstance(card, NeuronRecord)
    ]
    listed = {card.index for card in cards}
    seen = [Trace(serial=each.serial, minor=index, index=index) for index, each in files.items() if index not in listed]
    problems = [*dict.fromkeys(map(str, refused)), *found.problems]
    reader = ListingReader(_TABLE, problems, [*found.seen, *seen])
    complete = reader.settled(placed(cards, sys), none_is_fine=not problems)
    unreported = [problem for each in files.values() for problem in each.problems]
    return replace(complete, problems=(*complete.problems, *unreported), failed=frozenset(failed))


def witnesses(tool: Tool) -> Iterator[Trace]:
    """Yield the devices of the table, which is read only if the JSON fails or is incomplete."""
    with contextlib.suppress(DiscoveryError):
        found = parse_table(tool.run())
        yield from (trace_of(card) for card in found.cards)
        yield from found.seen


def parse_json(text: str) -> Listing:
    """Parse a list of devices, or an object that holds one. Raises Unreadable."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{_JSON}: expected JSON, got {shown(text)}: {error}") from error
    if isinstance(answer, dict):
        lists = [value for value in answer.values() if isinstance(value, list)]
        answer = max(lists, key=len, default=None)
    if not isinstance(answer, list):
        raise Unreadable(f"{_JSON}: expected a list of devices, got {shown(text)}")
    cards = []
    reader = ListingReader(_JSON)
    for position, device in enumerate(answer):
        with reader.entry(f"{_JSON}, device {position} of the list", _trace(device)):
            cards.append(_from_json(device))
    return reader.settled(cards, none_is_fine=not answer)


def parse_table(text: str) -> Listing:
    """Parse the table of `neuron-ls` (of `--topology`, the first one). Raises Unreadable."""
    lines = enumerate(text.splitlines(), start=1)
    rows = [(number, line, cells) for number, line in lines if (cells := cells_of(line))]
    columns: list[str] = []
    cards = []
    reader = ListingReader(_TABLE)
    for position, (number, line, cells) in enumerate(rows):
        if cells[0].upper() == "NEURON":
            below = rows[position + 1][2] if position + 1 < len(rows) else []
            columns = [f"{one} {other}".upper().strip() for one, other in zip(cells, below, strict=False)]
        elif columns and not cells[0].upper().startswith("DEVICE"):
            with reader.line(number, line, trace_in(line)):
                cards.append(_from_row(dict(zip(columns, cells, strict=False))))
    reader.require(columns, f"a table that begins with NEURON DEVICE, got {shown(text)}")
    return reader.settled(cards)


def from_files(files: Mapping[int, DeviceFiles]) -> Listing:
    """Return devices without the tool, with the cores of the model. Raises Unreadable."""
    cards, problems = [], []
    for index, device in files.items():
        known = device_of(device.device_name)
        if not device.cores or not known or device.device_name.removesuffix("1") != known.family:
            problems.append(
                f"/sys/{FILES}/neuron{index}: expected core_count and a device_name that is known, such as Trainium1, "
                f"got {shown(str(device.cores or ''))} and {shown(device.device_name)}"
            )
            continue
        cards.append(
            NeuronRecord(
                vendor=VENDOR,
                index=index,
                uuid=_identity(device.serial, index, "")[0],
                product=device.device_name,
                memory=known.memory * _GIB,
                minor=index,
                links=dict.fromkeys(device.connected, 1),
                cores=device.cores,
                logical_cores=max(1, device.cores * known.cores // known.physical_cores),
            )
        )
    return ListingReader(f"/sys/{FILES}", problems).settled(cards)


def _from_json(device: object) -> NeuronRecord:
    if not isinstance(device, dict):
        raise Unexpected("an object", str(device))
    index = _integer(device, "neuron_device", MAX_INDEX)
    cores = _integer(device, "nc_count", _MAX_CORES)
    numbered = device.get("neuroncore_ids")
    peers = device.get("connected_to") or []
    if not isinstance(peers, list) or not all(_is_index(peer) for peer in peers):
        raise Unexpected("connected_to: null or a list of device numbers", str(peers))
    address = bus_id(str(device.get("bdf", "")))
    numa = str(device.get("numa_node", ""))
    return NeuronRecord(
        vendor=VENDOR,
        index=index,
        uuid=_identity("", index, address)[0],
        product=_UNKNOWN_PRODUCT,
        memory=_integer(device, "memory_size", MAX_BYTES),
        pci_bus_id=address,
        numa_node=int(numa) if re.fullmatch(r"[0-9]{1,4}", numa) else None,
        links={peer: 1 for peer in peers if peer != index},
        minor=index,
        cores=cores,
        logical_cores=len(numbered) if isinstance(numbered, list) and 0 < len(numbered) <= cores else cores,
    )


def _integer(device: Mapping[str, Any], key: str, at_most: int) -> int:
    """Return a positive number; the number of the device may be 0."""
    value = device.get(key)
    least = 0 if key == "neuron_device" else 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= at_most:
        raise Unexpected(f"{key}: a whole number from {least} to {at_most}", str(value))
    return value


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INDEX


def _from_row(row: Mapping[str, str]) -> NeuronRecord:
    index = whole(row.get("NEURON DEVICE", ""), at_most=MAX_INDEX, what="a NEURON DEVICE")
    cores = whole(row.get("NEURON CORES", ""), at_most=_MAX_CORES, what="NEURON CORES")
    logical = said(row.get("LOGICAL NC"))
    peers = [peer for peer in said(row.get("CONNECTED DEVICES")).split(",") if peer.strip()]
    address = bus_id(row.get("PCI BDF", ""))
    if cores == 0:
        raise Unexpected("NEURON CORES: at least 1", "0")
    return NeuronRecord(
        vendor=VENDOR,
        index=index,
        uuid=_identity("", index, address)[0],
        product=_UNKNOWN_PRODUCT,
        memory=memory(row.get("NEURON MEMORY", "")),
        pci_bus_id=address,
        links={whole(peer, at_most=MAX_INDEX, what="a connected device"): 1 for peer in peers},
        minor=index,
        cores=cores,
        logical_cores=max(1, whole(logical, at_most=cores, what="LOGICAL NC")) if logical else cores,
    )


def _identity(serial: str, index: int, address: str) -> tuple[str, IdentitySource]:
    """Return the serial number; without one a name that is unique on this machine only."""
    if serial:
        return serial, IdentitySource.SERIAL
    return f"neuron-{address or index}", IdentitySource.PLACE


def _trace(device: object) -> Trace:
    if not isinstance(device, dict):
        return Trace()
    number = device.get("neuron_device")
    index = number if _is_index(number) else None
    return Trace(bus_id=bus_id_in(str(device.get("bdf", ""))), minor=index, index=index)


def _completed(
    card: NeuronRecord, files: Mapping[int, DeviceFiles], facts: MachineFacts, listing: Provenance
) -> NeuronRecord:
    """Add the data that only the kernel has. `listing`: the one that shows the card."""
    device = files.get(card.index, DeviceFiles(card.index))
    instance = instance_of(facts.instance_type)
    uuid, identified_by = _identity(device.serial, card.index, card.pci_bus_id)
    return replace(
        card,
        uuid=uuid,
        provenance=replace(
            listing, identified_by=identified_by, rank=listing.rank + _WITHOUT_NAME * (not device.device_name)
        ),
        product=device.device_name or (instance.device.family if instance else card.product),
        serial=device.serial,
        links=card.links or dict.fromkeys(device.connected, 1),
        faults=device.faults,
        driver_version=facts.driver_version,
        architecture=device.architecture,
        instance_type=facts.instance_type or device.instance_type,
        cores=max(card.cores, device.cores or 0),
    )


_LISTINGS: Final[tuple[tuple[str, tuple[str, ...], Callable[[str], Listing]], ...]] = (
    (_JSON, ("--json-output",), parse_json),
    (_TABLE, (), parse_table),
)
"""Name, arguments, parser; those with most data first."""
