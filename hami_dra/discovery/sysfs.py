"""The kernel's data on the place of a card: root complex, NUMA node and distances on PCIe, from `/sys`.

Called by all back ends. In: PCI bus ids. Out: places; unreadable values are unknown. Reads only.
"""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api.hardware import Card, PcieDistance

SYS: Final = Path("/sys")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_MAX_FILE: Final = 4096
_MOST: Final = 8 << 20
"""Maximum bytes read of a file."""

AnyCard = TypeVar("AnyCard", bound=Card)


class PciLocation(Struct, frozen=True):
    """The place of one PCI device."""

    bus_id: str
    root: str = ""
    """`pci0000:15`; empty = not known."""
    bridges: tuple[str, ...] = ()
    """Bus ids from the root port down to the port above the device."""
    numa_node: int | None = None


def start_of(path: Path, most: int = _MOST) -> str | None:
    """Return the content of a file, of a longer one its first bytes; None when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return None


def text_of(path: Path) -> str | None:
    """Return the content of a small file, stripped; None when it cannot be read."""
    text = start_of(path, _MAX_FILE)
    return text and text.strip()


def place_of(bus_id: str, sys: Path = SYS) -> PciLocation:
    """Return the place. `bus_id` in the form `0000:1b:00.0`."""
    device = sys / "bus" / "pci" / "devices" / bus_id
    try:
        parts = device.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return PciLocation(bus_id)
    roots = [number for number, part in enumerate(parts) if _ROOT.fullmatch(part)]
    numa = text_of(device / "numa_node")
    return PciLocation(
        bus_id,
        root=parts[roots[0]] if roots else "",
        bridges=parts[roots[0] + 1 : -1] if roots else (),
        numa_node=int(numa) if numa and re.fullmatch(r"[0-9]{1,4}", numa) else None,
    )


def distance(one: PciLocation, other: PciLocation) -> PcieDistance | None:
    """Return the distance, as counted by `nvidia-smi topo`; None when it is not known."""
    if not one.root or not other.root:
        return None
    if one.root != other.root:
        if one.numa_node is None or other.numa_node is None:
            return None
        return PcieDistance.SAME_CPU if one.numa_node == other.numa_node else PcieDistance.CROSS_CPU
    if one.bus_id.partition(".")[0] == other.bus_id.partition(".")[0]:
        return PcieDistance.BOARD
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.bridges, other.bridges)))  # noqa: B905 (paths differ in length)
    if shared == 0:
        return PcieDistance.HOST_BRIDGE
    # below a switch each card has a downstream port of its own; more bridges than that are further
    # switches
    own = max(len(one.bridges), len(other.bridges)) - shared
    return PcieDistance.SINGLE_SWITCH if own <= 1 else PcieDistance.MULTIPLE_SWITCHES


def placed(cards: Iterable[AnyCard], sys: Path = SYS) -> list[AnyCard]:
    """Return the cards with their places. Values from a card's own tool stay."""
    given = list(cards)
    places = {card.index: place_of(card.pci_bus_id, sys) for card in given if card.pci_bus_id}
    result = []
    for card in given:
        place = places.get(card.index)
        if place is None:
            result.append(card)
            continue
        peers = {peer: distance(place, other) for peer, other in places.items() if peer != card.index}
        found = {peer: far for peer, far in peers.items() if far is not None}
        result.append(
            replace(
                card,
                pcie_root=card.pcie_root or place.root,
                numa_node=place.numa_node if card.numa_node is None else card.numa_node,
                distances=found | dict(card.distances),
            )
        )
    return result
