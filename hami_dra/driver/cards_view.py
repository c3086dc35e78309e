"""Published devices as people want to see them: cards with their roles, and how they are connected.

Called by `hami-dra slices` and `hami-dra topology`. In: ResourceSlices of any driver. Out: cards, islands and a matrix of words.
Pure; reads only what is published, by the driver's profile, so it shows exactly what the scheduler knows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import PcieDistance
from hami_dra.api.resource import Device, DeviceAttribute, ResourceSlice
from hami_dra.vendors.profiles import profile_of

SELF: Final = "X"
UNKNOWN: Final = "?"
LANES: Final = "L<n>"
WORDS: Final[Mapping[PcieDistance, str]] = {
    PcieDistance.BOARD: "BRD",
    PcieDistance.SINGLE_SWITCH: "PIX",
    PcieDistance.MULTIPLE_SWITCHES: "PXB",
    PcieDistance.HOST_BRIDGE: "PHB",
    PcieDistance.SAME_CPU: "NODE",
    PcieDistance.CROSS_CPU: "SYS",
}
LEGEND: Final[Mapping[str, str]] = {
    LANES: "n lanes of the fast interconnect (NVLink and its like)",
    "BRD": "on one board",
    "PIX": "below one PCIe switch",
    "PXB": "below several PCIe switches of one host bridge",
    "PHB": "through one PCIe host bridge",
    "NODE": "through several host bridges of one NUMA node",
    "SYS": "through the interconnect between NUMA nodes",
    UNKNOWN: "the driver does not say",
}
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_MATRIX: Final = ("-", "0")
"""In `links` and `distance`: the card itself, and nothing known."""


@dataclass(frozen=True, slots=True)
class CardView:
    """Texts are empty, numbers None, where the driver does not publish the role."""

    driver: str
    node: str
    device: str
    product: str
    uuid: str
    index: int | None
    numa: int | None
    root: str
    group: str
    """Of the fast interconnect; empty = none."""
    links: str
    distance: str
    memory: str
    cores: str
    shares: str
    taints: tuple[str, ...]


def cards_of(slices: Iterable[ResourceSlice]) -> list[CardView]:
    """In the order of node, driver, index, name; numbers in names count as numbers."""
    cards = [_card(item, device) for item in slices for device in item.spec.devices]
    return sorted(
        cards,
        key=lambda card: (_natural(card.node), card.driver, card.index is None, card.index or 0, _natural(card.device)),
    )


def connection(one: CardView, other: CardView) -> str:
    """A word of the legend."""
    if one == other:
        return SELF
    lanes = _letter(one.links, other.index)
    if lanes in _DIGITS and lanes not in ("", "0"):
        return f"L{_DIGITS.index(lanes)}"
    letter = _letter(one.distance, other.index)
    return WORDS[PcieDistance(letter)] if letter in {*PcieDistance} else UNKNOWN


def islands_of(cards: Sequence[CardView]) -> dict[str, list[CardView]]:
    """Fast-interconnect group → its cards; cards without a group are in none."""
    groups: dict[str, list[CardView]] = {}
    for card in cards:
        if card.group:
            groups.setdefault(card.group, []).append(card)
    return groups


def _card(item: ResourceSlice, device: Device) -> CardView:
    driver = item.spec.driver
    profile = profile_of(driver)

    def attribute(name: str | None) -> DeviceAttribute | None:
        """In full first, then bare where the domain is the driver's, as the allocator looks it up."""
        if name is None:
            return None
        found = device.attributes.get(name) or device.attributes.get(f"{driver}/{name}")
        return found or device.attributes.get(name.removeprefix(f"{driver}/"))

    def text(name: str | None) -> str:
        found = attribute(name)
        return (found.string or "") if found else ""

    def number(name: str | None) -> int | None:
        found = attribute(name)
        return found.int_ if found else None

    def capacity(name: str | None) -> str:
        return str(device.capacity[name].value) if name in device.capacity else ""

    group = number(profile.link_group)
    return CardView(
        driver=driver,
        node=item.spec.node_name or item.spec.pool.name,
        device=device.name,
        product=text(profile.product),
        uuid=text(profile.uuid),
        index=number(profile.index),
        numa=number(profile.numa),
        root=text(names.ATTR_PCIE_ROOT),
        group=str(group) if group is not None and group > 0 else text(profile.link_group),
        links=text(profile.links),
        distance=text(profile.distance),
        memory=capacity(profile.memory),
        cores=capacity(profile.cores),
        shares=capacity(profile.shares) or str(profile.default_shares if device.allow_multiple_allocations else 1),
        taints=tuple(f"{taint.key}:{taint.effect}" for taint in device.taints),
    )


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"([0-9]+)", name)]


def _letter(row: str, index: int | None) -> str:
    return row[index] if index is not None and 0 <= index < len(row) else ""
