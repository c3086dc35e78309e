"""AWS Neuron devices, through `neuron-ls` and the kernel driver's files below `/sys/devices/virtual/neuron_device`.

Called by the node driver. `neuron-ls --json-output` tells devices, memory, neighbours and PCI; the files tell names, serial
numbers and error counts, and stand in where the tool is missing. Parsers are pure.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hami_dra.api.hardware import Fault, NeuronRecord
from hami_dra.discovery.backend import Findings, PolledBackend, settled
from hami_dra.discovery.errors import DiscoveryError, Unexpected, Unreadable, at_line, shown
from hami_dra.discovery.reading import MAX_BYTES, MAX_INDEX, bus_id, identity, memory, name_if_said, said, whole
from hami_dra.discovery.sysfs import SYS, placed, text_of
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.neuron.instances import device_of, instance_of

VENDOR: Final = "neuron"
TOOL: Final = Tool("neuron-ls", (Path("/opt/aws/neuron/bin"),))
_JSON: Final = "neuron-ls --json-output"
_TABLE: Final = "neuron-ls"
_FILES: Final = "devices/virtual/neuron_device"
_FOLDER: Final = re.compile(r"neuron(\d{1,4})")
_MAX_CORES: Final = 256
_UNKNOWN_PRODUCT: Final = "Neuron"

_GIB: Final = 1 << 30
_INSTANCE_TYPE: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """What the kernel driver tells about one device; empty or None = nothing."""

    index: int
    device_name: str = ""
    serial: str = ""
    architecture: str = ""
    instance_type: str = ""
    """Of the device's kind: `Trn1`."""
    cores: int | None = None
    connected: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class About:
    """What the kernel tells about the whole machine; empty = nothing."""

    driver_version: str
    instance_type: str
    """`trn1.32xlarge`: EC2 calls the machine's product so."""


def backend(tool: Tool = TOOL, sys: Path = SYS) -> PolledBackend:
    return PolledBackend(VENDOR, lambda: read(tool, sys))


def read(tool: Tool = TOOL, sys: Path = SYS) -> Findings:
    """All Neuron devices of this machine. Raises DiscoveryError: what the tool said, when the files do not help."""
    files = read_files(sys)
    refused: list[DiscoveryError] = []
    findings = Findings(())
    for arguments, parse in ((("--json-output",), parse_json), ((), parse_table)):
        try:
            findings = parse(tool.run(*arguments))
        except DiscoveryError as error:
            refused.append(error)
        else:
            break
    else:
        if not files:
            raise refused[0]
        findings = from_files(files)
    about = _about(sys)
    cards = placed([_completed(card, files, about) for card in findings.cards if isinstance(card, NeuronRecord)], sys)
    problems = tuple(dict.fromkeys(map(str, refused))) + findings.problems
    return settled(_TABLE, cards, problems, none_is_fine=not problems)


def parse_json(text: str) -> Findings:
    """A list of devices, or an object that holds one. Raises Unreadable."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{_JSON}: expected JSON, got {shown(text)}: {error}") from error
    if isinstance(answer, dict):
        lists = [value for value in answer.values() if isinstance(value, list)]
        answer = max(lists, key=len, default=None)
    if not isinstance(answer, list):
        raise Unreadable(f"{_JSON}: expected a list of devices, got {shown(text)}")
    cards, problems = [], []
    for position, device in enumerate(answer):
        try:
            cards.append(_from_json(device))
        except Unexpected as error:
            problems.append(f"{_JSON}, device {position} of the list: {error}")
    return settled(_JSON, cards, problems, none_is_fine=not answer)


def parse_table(text: str) -> Findings:
    """The table of `neuron-ls`, and the first one of `neuron-ls --topology`. Raises Unreadable."""
    rows = [
        (number, line, [cell.strip() for cell in line.strip().strip("|").split("|")])
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip().startswith("|")
    ]
    columns: list[str] = []
    cards, problems = [], []
    for position, (number, line, cells) in enumerate(rows):
        if cells[0].upper() == "NEURON":
            below = rows[position + 1][2] if position + 1 < len(rows) else []
            columns = [f"{one} {other}".upper().strip() for one, other in zip(cells, below, strict=False)]
        elif columns and not cells[0].upper().startswith("DEVICE"):
            try:
                cards.append(_from_row(dict(zip(columns, cells, strict=False))))
            except Unexpected as error:
                problems.append(at_line(_TABLE, number, line, error))
    if not columns:
        raise Unreadable(f"{_TABLE}: expected a table that begins with NEURON DEVICE, got {shown(text)}")
    return settled(_TABLE, cards, problems)


def read_files(sys: Path = SYS) -> dict[int, DeviceFiles]:
    """Index → what the kernel driver tells; empty without the driver."""
    try:
        folders = sorted((sys / _FILES).iterdir())
    except OSError:
        return {}
    found = {}
    for folder in folders:
        if match := _FOLDER.fullmatch(folder.name):
            found[int(match[1])] = _device_files(int(match[1]), folder)
    return found


def from_files(files: Mapping[int, DeviceFiles]) -> Findings:
    """Devices without the tool: what a device is tells its memory, and how its cores are joined by default.

    Raises Unreadable.
    """
    cards, problems = [], []
    for index, device in files.items():
        known = device_of(device.device_name)
        if not device.cores or not known or device.device_name.removesuffix("1") != known.family:
            problems.append(
                f"/sys/{_FILES}/neuron{index}: expected core_count and a device_name that is known, such as Trainium1, "
                f"got {shown(str(device.cores or ''))} and {shown(device.device_name)}"
            )
            continue
        cards.append(
            NeuronRecord(
                vendor=VENDOR,
                index=index,
                uuid=_identity(device.serial, index, ""),
                product=device.device_name,
                memory=known.memory * _GIB,
                minor=index,
                links=dict.fromkeys(device.connected, 1),
                cores=device.cores,
                logical_cores=max(1, device.cores * known.cores // known.physical_cores),
            )
        )
    return settled(f"/sys/{_FILES}", cards, problems)


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
        uuid=_identity("", index, address),
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
    """More than none, but for the number of the device."""
    value = device.get(key)
    least = 0 if key == "neuron_device" else 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= at_most:
        raise Unexpected(f"{key}: a whole number from {least} to {at_most}", str(value))
    return value


def _is_index(value: object) -> bool:
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
        uuid=_identity("", index, address),
        product=_UNKNOWN_PRODUCT,
        memory=memory(row.get("NEURON MEMORY", "")),
        pci_bus_id=address,
        links={whole(peer, at_most=MAX_INDEX, what="a connected device"): 1 for peer in peers},
        minor=index,
        cores=cores,
        logical_cores=max(1, whole(logical, at_most=cores, what="LOGICAL NC")) if logical else cores,
    )


def _identity(serial: str, index: int, address: str) -> str:
    """The serial number; without one a name that is unique on this machine only."""
    return serial or f"neuron-{address or index}"


def _about(sys: Path) -> About:
    machine = text_of(sys / "devices" / "virtual" / "dmi" / "id" / "product_name") or ""
    return About(
        driver_version=name_if_said(text_of(sys / "module" / "neuron" / "version")),
        instance_type=machine if _INSTANCE_TYPE.fullmatch(machine) else "",
    )


def _completed(card: NeuronRecord, files: Mapping[int, DeviceFiles], about: About) -> NeuronRecord:
    """With what only the kernel tells."""
    device = files.get(card.index, DeviceFiles(card.index))
    instance = instance_of(about.instance_type)
    return replace(
        card,
        uuid=_identity(device.serial, card.index, card.pci_bus_id),
        product=device.device_name or (instance.device.family if instance else card.product),
        serial=device.serial,
        links=card.links or dict.fromkeys(device.connected, 1),
        faults=device.faults,
        driver_version=about.driver_version,
        architecture=device.architecture,
        instance_type=about.instance_type or device.instance_type,
        cores=max(card.cores, device.cores or 0),
    )


def _device_files(index: int, folder: Path) -> DeviceFiles:
    def value(*path: str) -> str:
        return said(text_of(folder.joinpath(*path)))

    peers = [peer.strip() for peer in re.split(r"[,\s]+", value("connected_devices")) if peer.strip().isdecimal()]
    cores = value("core_count")
    architecture = ("info", "architecture")
    return DeviceFiles(
        index=index,
        device_name=name_if_said(value(*architecture, "device_name")),
        serial=_serial(value("info", "serial_number")),
        architecture=name_if_said(value(*architecture, "arch_type")),
        instance_type=name_if_said(value(*architecture, "instance_type")),
        cores=int(cores) if re.fullmatch(r"[1-9][0-9]{0,2}", cores) else None,
        connected=tuple(int(peer) for peer in peers if len(peer) <= 4 and int(peer) != index),
        faults=tuple(_faults(folder)),
    )


def _serial(text: str) -> str:
    try:
        return identity(text, "a serial number")
    except Unexpected:
        return ""


def _faults(folder: Path) -> Iterator[Fault]:
    """Errors in memory that could not be corrected, since the driver was loaded."""
    for counter in ("mem_ecc_uncorrected", "sram_ecc_uncorrected"):
        path = folder / "stats" / "hardware" / counter
        count = text_of(path) or text_of(path / "total") or ""
        if count.isdecimal() and count.strip("0"):
            yield Fault(code="ecc-uncorrected", message=f"{path} is {count}")
