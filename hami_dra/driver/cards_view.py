"""Published devices for people: cards with their roles, how they are connected, and their free capacity.

Called by `hami-dra slices` and `hami-dra topology`. In: ResourceSlices of any driver, and claims.
Out: cards, islands and a matrix of words. Pure; reads only published data, by the driver's profile,
so it shows exactly what the scheduler knows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from hami_dra.api import names
from hami_dra.api.hardware import PcieDistance
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import Device, DeviceAttribute, ResourceClaim, ResourceSlice
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles
from hami_dra.vendors.protocol import DriverProfile

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
    LANES: "n lanes of the fast interconnect (NVLink and its like; L1 also where the driver does not count them)",
    "BRD": "on one board",
    "PIX": "below one PCIe switch",
    "PXB": "below several PCIe switches of one host bridge",
    "PHB": "through one PCIe host bridge",
    "NODE": "through several host bridges of one NUMA node",
    "SYS": "through the interconnect between NUMA nodes",
    UNKNOWN: "the driver does not say",
}
ALL: Final = "all"
NOTHING: Final = "nothing"
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class DeviceKey(NamedTuple):
    driver: str
    pool: str
    device: str


class DeviceUse(Struct):
    """The part of one device that claims hold."""

    claims: int = 0
    capacity: dict[str, Quantity] = field(default_factory=dict)


class CardView(Struct, frozen=True):
    """One card. Texts are empty, numbers None, where the driver does not publish the role."""

    key: DeviceKey
    node: str
    product: str
    uuid: str
    index: int | None
    numa: int | None
    root: str
    group: str
    """Group of the fast interconnect; empty = none."""
    links: str
    distance: str
    memory: str
    cores: str
    shares: str
    partition: str
    """Kind of partition; empty = it is a card."""
    free: str
    """For people: `all`, `nothing`, or the free amount of each capacity."""
    taken: bool
    taints: tuple[str, ...]

    @property
    def driver(self) -> str:
        return self.key.driver

    @property
    def device(self) -> str:
        return self.key.device


def usage_of(claims: Iterable[ResourceClaim]) -> dict[DeviceKey, DeviceUse]:
    """Return the allocated amounts by device. Admin access consumes nothing."""
    usage: dict[DeviceKey, DeviceUse] = {}
    for claim in claims:
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation else ():
            if result.admin_access:
                continue
            use = usage.setdefault(DeviceKey(result.driver, result.pool, result.device), DeviceUse())
            use.claims += 1
            for name, amount in result.consumed_capacity.items():
                try:
                    taken = Quantity.parse(str(amount))
                except InvalidQuantity:
                    continue
                use.capacity[name] = use.capacity[name].add(taken) if name in use.capacity else taken
    return usage


def cards_of(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim] = (), profiles: DriverProfiles = BUILT_IN_PROFILES
) -> list[CardView]:
    """Return cards and partitions in the order of node, driver, index, name; numbers in names count as numbers."""
    usage = usage_of(claims)
    cards = [
        _card(item, device, usage, profiles.of(item.spec.driver)) for item in slices for device in item.spec.devices
    ]
    return sorted(
        cards,
        key=lambda card: (_natural(card.node), card.driver, card.index is None, card.index or 0, _natural(card.device)),
    )


def connection(one: CardView, other: CardView) -> str:
    """Return a word of the legend."""
    if one == other:
        return SELF
    lanes = _letter(one.links, other.index)
    if lanes in _DIGITS and lanes not in ("", "0"):
        return f"L{_DIGITS.index(lanes)}"
    letter = _letter(one.distance, other.index)
    return WORDS[PcieDistance(letter)] if letter in {*PcieDistance} else UNKNOWN


def islands_of(cards: Sequence[CardView]) -> dict[str, list[CardView]]:
    """Return fast-interconnect group → its cards; cards without a group are left out."""
    groups: dict[str, list[CardView]] = {}
    for card in cards:
        if card.group:
            groups.setdefault(card.group, []).append(card)
    return groups


def free_of(card: CardView, parts: Iterable[CardView]) -> str:
    """Return the free part of a card; `parts`: its possible partitions."""
    cut = [part.device.removeprefix(f"{card.device}-") for part in parts if part.taken]
    return f"cut: {', '.join(cut)}" if cut else card.free


def spans(cards: Sequence[CardView]) -> str:
    """Join the names of neighbours: `gpu-0 to gpu-3, gpu-6`."""
    runs: list[list[CardView]] = []
    for card in cards:
        last = runs[-1][-1].index if runs else None
        if last is not None and card.index == last + 1:
            runs[-1].append(card)
        else:
            runs.append([card])
    words = []
    for run in runs:
        names_ = [run[0].device] if len(run) == 1 else [run[0].device, run[-1].device]
        words.append((" to " if len(run) > 2 else ", ").join(names_))
    return ", ".join(words)


def _card(
    item: ResourceSlice, device: Device, usage: Mapping[DeviceKey, DeviceUse], profile: DriverProfile
) -> CardView:
    driver = item.spec.driver
    key = DeviceKey(driver, item.spec.pool.name, device.name)
    use = usage.get(key, DeviceUse())

    def attribute(name: str | None) -> DeviceAttribute | None:
        """Look up the full name first, then the bare one if the domain is the driver's, as the allocator does."""
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

    group, partition = number(profile.link_group), text(profile.partition)
    index = number(profile.index)
    if index is None and profile.number_in_name is not None:
        index = profile.number_of(device.name)
    return CardView(
        key=key,
        node=item.spec.node_name or item.spec.pool.name,
        product=text(profile.product),
        uuid=text(profile.uuid),
        index=index,
        numa=number(profile.numa),
        root=text(profile.pcie_root),
        group=str(group) if group is not None and group > 0 else text(profile.link_group),
        links=text(profile.links),
        distance=text(profile.distance),
        memory=capacity(profile.memory or names.CAP_MEMORY),
        cores=capacity(profile.cores),
        shares=capacity(profile.shares or names.CAP_SHARES)
        or str(profile.default_shares if device.allow_multiple_allocations else 1),
        partition=partition if partition and profile.means_part(partition) else "",
        free=_free(device, use, profile),
        taken=use.claims > 0,
        taints=tuple(f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}" for taint in device.taints),
    )


def _free(device: Device, use: DeviceUse, profile: DriverProfile) -> str:
    if not use.claims:
        return ALL
    if not device.allow_multiple_allocations:
        return NOTHING
    words = []
    exhausted = False
    for name in (profile.memory, profile.cores, profile.shares):
        if name not in device.capacity or name not in use.capacity:
            continue
        total = Quantity.parse(str(device.capacity[name].value))
        left = total.sub(use.capacity[name])
        # requests for no share of the cores may still join a card without idle cores
        exhausted = exhausted or (left.sign() <= 0 and (name != profile.cores or profile.memory is None))
        words.append(f"{left} of {total} {name}")
    return NOTHING if exhausted else ", ".join(words) or f"shared by {use.claims}"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"([0-9]+)", name)]


def _letter(row: str, index: int | None) -> str:
    return row[index] if index is not None and 0 <= index < len(row) else ""
