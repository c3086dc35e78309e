"""The GPUs of this machine as records, through NVML.

Called by `backend`, in its thread. A GPU without a uuid, a name or memory is left out and named,
and its trace is noted; other values that a GPU or driver does not know stay empty. A GPU that is
lost while it is read is left out too.

GPUs that share the memory of the machine (GB10, Jetson Thor) have no memory info: NVML answers
NOT_SUPPORTED, and NVIDIA's own DRA driver publishes them without memory (nvlib.go). Here they have
all memory of the machine, each an equal part if there are several.
"""

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from hami_dra.api.hardware import Fault, PcieDistance
from hami_dra.discovery.errors import Unexpected
from hami_dra.discovery.matching import Trace
from hami_dra.discovery.reading import bus_id, identity, name, name_if_said
from hami_dra.discovery.sysfs import SYS, placed, text_of
from hami_dra.vendors.nvidia.nvml.calls import NOT_SUPPORTED, NvmlFailed, optional, tolerated
from hami_dra.vendors.nvidia.nvml.library import MAX_LANES, SWITCH, Handle, Library
from hami_dra.vendors.nvidia.nvml.mig import mig_state, permission_fault
from hami_dra.vendors.nvidia.records import GpuRecord


class Lanes(Struct):
    """The lanes of one GPU."""

    to_bus: dict[str, int] = field(default_factory=dict)
    """PCI bus id at the other end → lanes."""
    to_switches: int = 0


def lanes_of(library: Library, gpu: Handle, problem: Callable[[str], None]) -> Lanes:
    """Return lanes that are up. Raises NvmlFailed when the GPU is lost."""
    lanes = Lanes()
    for lane in range(MAX_LANES):
        what = f"NVLink lane {lane}: "
        try:
            with tolerated(problem, what):
                if not library.lane_is_up(gpu, lane):
                    continue
                if _ends_at_switch(library, gpu, lane):
                    lanes.to_switches += 1
                else:
                    peer = bus_id(library.lane_bus_id(gpu, lane))
                    lanes.to_bus[peer] = lanes.to_bus.get(peer, 0) + 1
        except Unexpected as error:
            problem(f"{what}{error}")
    return lanes


def links(lanes: Mapping[int, Lanes], buses: Mapping[int, str]) -> dict[int, dict[int, int]]:
    """Return GPU index → peer → lanes, as reported by each side; counted as in HAMi's newest version:
    lanes that end at the peer itself, else the smaller of the two counts of lanes to NVSwitches.
    """
    result: dict[int, dict[int, int]] = {}
    for index, own in lanes.items():
        found = {}
        for peer, others in lanes.items():
            count = own.to_bus.get(buses[peer], 0) or min(own.to_switches, others.to_switches)
            if peer != index and count:
                found[peer] = count
        result[index] = found
    return result


def one_sided(found: Mapping[int, Mapping[int, int]]) -> list[str]:
    """Return sentences for pairs whose sides count differently: a lane is down, and they score as not linked."""
    return [
        f"NVLink: GPU {index} has {count} lanes to GPU {peer}, which has {found[peer].get(index, 0)} back"
        for index, peers in found.items()
        for peer, count in peers.items()
        if found[peer].get(index, 0) != count and (index < peer or not found[peer].get(index, 0))
    ]


def _ends_at_switch(library: Library, gpu: Handle, lane: int) -> bool:
    try:
        return library.lane_type(gpu, lane) == SWITCH
    except NvmlFailed as failed:
        if failed.absent:
            return False
        raise


VENDOR: Final = "nvidia"
MEMINFO: Final = Path("/proc/meminfo")
_TOTAL: Final = re.compile(r"^MemTotal:\s+(\d{1,15}) kB$", re.MULTILINE)
REMAPPING_FAILED: Final = Fault(
    code="row-remapping", message="a broken row of the GPU's memory could not be remapped; the GPU is to be replaced"
)

_DISTANCES: Final[Mapping[int, PcieDistance]] = {
    0: PcieDistance.BOARD,
    10: PcieDistance.SINGLE_SWITCH,
    20: PcieDistance.MULTIPLE_SWITCHES,
    30: PcieDistance.HOST_BRIDGE,
    40: PcieDistance.SAME_CPU,
    50: PcieDistance.CROSS_CPU,
}
"""nvmlGpuTopologyLevel_t."""
_BRANDS: Final[Mapping[int, str]] = {
    1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps", 8: "NvidiaVPC",
    9: "NvidiaVCS", 10: "NvidiaVWS", 11: "NvidiaCloudGaming", 12: "QuadroRTX", 13: "NvidiaRTX", 14: "Nvidia",
    15: "GeForceRTX", 16: "TitanRTX",
}  # fmt: skip
"""nvmlBrandType_t, with the names of NVIDIA's own DRA driver."""
_ARCHITECTURES: Final[Mapping[int, str]] = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
"""NVML_DEVICE_ARCH_..."""

T = TypeVar("T")


class NvmlReading(Struct):
    """One pass over the hardware."""

    cards: dict[int, GpuRecord] = field(default_factory=dict)
    handles: dict[int, Handle] = field(default_factory=dict)
    lanes: dict[int, Lanes] = field(default_factory=dict)
    distances: dict[int, dict[int, PcieDistance]] = field(default_factory=lambda: defaultdict(dict))
    problems: list[str] = field(default_factory=list)
    seen: list[Trace] = field(default_factory=list)
    """GPUs that answer, but have no record."""


def read_all(library: Library, sys: Path = SYS, meminfo: Path = MEMINFO) -> NvmlReading:
    """Read all GPUs. Raises NvmlFailed when not even the GPUs can be counted."""
    reading = NvmlReading()
    driver = optional(library.driver_version, "", reading.problems.append)
    cuda = optional(library.cuda_version, "", reading.problems.append)
    for index in range(library.count()):
        _read_one(library, index, reading)
    _share_memory(reading, meminfo)
    buses = {index: card.pci_bus_id for index, card in reading.cards.items()}
    found = links(reading.lanes, buses)
    reading.problems += one_sided(found)
    for one, other in itertools.permutations(reading.cards, 2):
        _read_pair(library, one, other, reading)
    records = [
        replace(
            card,
            driver_version=driver,
            runtime_version=cuda,
            links=found[index],
            distances=reading.distances[index],
        )
        for index, card in reading.cards.items()
    ]
    reading.cards = {card.index: card for card in placed(records, sys)}
    for index in list(reading.cards):
        _drop_if_lost(library, index, reading)
    return reading


def _read_one(library: Library, index: int, reading: NvmlReading) -> None:
    def problem(text: str) -> None:
        reading.problems.append(f"NVML, GPU {index}: {text}")

    try:
        handle = library.gpu(index)
        card = _record(library, index, handle, problem)
        own_lanes = lanes_of(library, handle, problem)
    except (NvmlFailed, Unexpected) as error:
        problem(f"left out: {error}")
        if not (isinstance(error, NvmlFailed) and error.lost):
            reading.seen.append(_trace(library, index))
        return
    reading.cards[index] = card
    reading.handles[index] = handle
    reading.lanes[index] = own_lanes


def _trace(library: Library, index: int) -> Trace:
    uuid = ""
    with contextlib.suppress(NvmlFailed):
        uuid = library.uuid(library.gpu(index))
    return Trace(uuid=uuid, index=index)


def _share_memory(reading: NvmlReading, meminfo: Path) -> None:
    """Give the memory of the machine to the GPUs without their own memory."""
    without = [index for index, card in reading.cards.items() if not card.memory]
    if not without:
        return
    found = _TOTAL.search(text_of(meminfo) or "")
    for index in without:
        if found:
            size = (int(found[1]) << 10) // len(without)
            reading.cards[index] = replace(reading.cards[index], memory=size)
            reading.problems.append(
                f"NVML, GPU {index}: it shares the memory of the machine: {size >> 20} MiB are its own"
            )
        else:
            reading.problems.append(
                f"NVML, GPU {index}: left out: it shares the memory of the machine, and {meminfo} does not tell it"
            )
            reading.seen.append(Trace(uuid=reading.cards[index].uuid))
            del reading.cards[index], reading.handles[index], reading.lanes[index]


def _memory(library: Library, gpu: Handle) -> int:
    """Return bytes; 0: it has no memory of its own."""
    try:
        memory = library.memory(gpu)
    except NvmlFailed as failed:
        if failed.code == NOT_SUPPORTED:
            return 0
        raise
    if memory <= 0:
        raise Unexpected("memory", str(memory))
    return memory


def _record(library: Library, index: int, gpu: Handle, problem: Callable[[str], None]) -> GpuRecord:
    def known(read: Callable[[Handle], T], otherwise: T) -> T:
        return optional(lambda: read(gpu), otherwise, problem)

    mig = mig_state(library, gpu, problem)
    remapping = (REMAPPING_FAILED,) if known(library.remapping_failed, otherwise=False) else ()
    return GpuRecord(
        vendor=VENDOR,
        index=index,
        uuid=identity(library.uuid(gpu), "a uuid"),
        product=name(library.name(gpu), "a name"),
        memory=_memory(library, gpu),
        pci_bus_id=bus_id(library.bus_id(gpu)),
        numa_node=known(library.numa_node, None),
        minor=known(library.minor, None),
        serial=name_if_said(known(library.serial, "")),
        faults=(*remapping, *permission_fault(library, gpu, mig)),
        brand=_BRANDS.get(known(library.brand, 0), ""),
        architecture=_ARCHITECTURES.get(known(library.architecture, 0), ""),
        compute_capability=known(library.compute_capability, ""),
        mig=mig,
        fabric=known(library.fabric, None),
    )


def _read_pair(library: Library, one: int, other: int, reading: NvmlReading) -> None:
    first, second = reading.handles[one], reading.handles[other]
    try:
        level = library.common_ancestor(first, second)
        if level in _DISTANCES:
            reading.distances[one][other] = _DISTANCES[level]
    except NvmlFailed as failed:
        if not failed.lost and not failed.absent:
            reading.problems.append(f"NVML, GPUs {one} and {other}: {failed}")


def _drop_if_lost(library: Library, index: int, reading: NvmlReading) -> None:
    try:
        library.uuid(reading.handles[index])
    except NvmlFailed as failed:
        reading.problems.append(f"NVML, GPU {index}: left out: {failed}")
        del reading.cards[index], reading.handles[index]
