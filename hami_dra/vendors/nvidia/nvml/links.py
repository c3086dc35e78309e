"""NVLink lanes between the GPUs of a machine, including lanes that end at NVSwitches.

Called by `cards`. In: handles and PCI bus ids. Out: lanes per pair. Counted as in HAMi's newest
version: lanes that end at the peer itself; without any, if both GPUs have lanes to NVSwitch, the
smaller of the two counts of such lanes.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from hami_dra.discovery.errors import Unexpected
from hami_dra.discovery.reading import bus_id
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed, tolerated
from hami_dra.vendors.nvidia.nvml.library import MAX_LANES, SWITCH, Handle, Library


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
    """Return GPU index → peer → lanes, as reported by each side."""
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
