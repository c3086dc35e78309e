"""From cards to published devices: the interface of each vendor with a driver, and the parts they share.

Called by `hami_dra.driver.slices` and by the generator of `deviceclasses/`. In: `Card` records and
how they may be shared. Out: devices and DeviceClasses as plain JSON in resource.k8s.io/v1 form,
inside the API's limits, quantities canonical. Pure; must not know about nodes, pools or slices.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Protocol

from hami_dra.api import names
from hami_dra.api.errors import InputError
from hami_dra.api.hardware import Card, DrivenCard
from hami_dra.api.options import VendorSettings
from hami_dra.api.quantity import Format, Quantity
from hami_dra.api.semver import InvalidVersion, SemVer
from hami_dra.topology.islands import islands
from hami_dra.vendors.faults import taints_of

Json = dict[str, Any]

MIB: Final = 1 << 20
MAX_TEXT: Final = 64
"""Bytes of a string or version attribute (DeviceAttributeMaxValueLength)."""
CORES: Final = 100
"""Percent: the cores of one whole card."""
MAX_PARTS: Final = 10
"""Maximum parts of a capacity that is handed out in listed amounts (CapacityRequestPolicyDiscreteMaxOptions)."""
OF_WHOLE_CARDS: Final = (names.ATTR_LINK_GROUP, names.ATTR_LINKS, names.ATTR_DISTANCE)
"""Attributes that a part of a card does not have: it does not talk to other cards."""
_LANES: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SELF: Final = "-"
_NONE: Final = "0"


class Unpublishable(InputError):
    """A card or setting cannot be published; the message names it and the fix."""


class PublishingVendor(Protocol):
    """A vendor with one of hami-dra's drivers."""

    name: str
    """`Card.vendor` of the cards it publishes."""
    driver: str

    def devices(self, cards: Sequence[Card], settings: VendorSettings) -> list[Json]:
        """Return the vendor's cards of one machine, by index; partitions after all cards. Raises Unpublishable."""

    def counter_sets(self, cards: Sequence[Card]) -> list[Json]:
        """Return shared counters that `devices` of these cards consume; empty without partitions."""

    def device_classes(self) -> list[Json]:
        """Return complete DeviceClass objects; the first serves whole cards."""


# --- attributes -----------------------------------------------------------------------------------


def string(text: str) -> Json:
    """Return a string attribute, cut to the API's limit."""
    return {"string": text.encode()[:MAX_TEXT].decode(errors="ignore")}


def integer(value: int) -> Json:
    return {"int": value}


def version(text: str) -> Json | None:
    """Return a vendor's version as a semantic one: `550.90.07` → 550.90.7, `9.0` → 9.0.0; None if impossible."""
    try:
        return {"version": str(SemVer.parse(".".join(text.split(".")[:3]), normalize=True))}
    except InvalidVersion:
        return None


def common_attributes(cards: Iterable[Card], group_of: Mapping[int, int] | None = None) -> dict[int, dict[str, Json]]:
    """Return card index → the attributes that every vendor publishes (docs/publishing.md).

    `group_of`: card index → `linkGroup`; by default connected cards are one group. `links` and
    `distance` have one character per index; a machine with an index above 63 goes without them.
    """
    known = {card.index: card for card in cards}
    width = max(known, default=0) + 1
    if group_of is None:
        groups = islands({card.index: card.links for card in known.values()})
        group_of = {index: number for number, group in enumerate(groups, start=1) for index in group}
    result = {}
    for index, card in sorted(known.items()):
        if len(card.uuid) > MAX_TEXT:
            raise Unpublishable(f"card {index}: the uuid {card.uuid!r} has more than {MAX_TEXT} characters")
        attributes = {
            names.ATTR_VENDOR: string(card.vendor),
            names.ATTR_UUID: string(card.uuid),
            names.ATTR_PRODUCT: string(card.product),
            names.ATTR_INDEX: integer(index),
        }
        if index in group_of:
            attributes[names.ATTR_LINK_GROUP] = integer(group_of[index])
        if width <= MAX_TEXT:
            lanes = {peer: _LANES[min(count, len(_LANES) - 1)] for peer, count in card.links.items()}
            attributes[names.ATTR_LINKS] = string(_row(index, width, lanes))
            attributes[names.ATTR_DISTANCE] = string(_row(index, width, card.distances))
        result[index] = attributes | place_attributes(card)
    return result


def place_attributes(card: Card) -> dict[str, Json]:
    """Return the known standard attributes of Kubernetes."""
    attributes = {}
    if card.pci_bus_id:
        attributes[names.ATTR_PCI_BUS_ID] = string(card.pci_bus_id)
    if card.pcie_root:
        attributes[names.ATTR_PCIE_ROOT] = string(card.pcie_root)
    if card.numa_node is not None:
        attributes[names.ATTR_NUMA_NODE] = integer(card.numa_node)
    return attributes


def driver_version(card: Card) -> dict[str, Json]:
    """Return the version in the driver's own domain; empty if it is not known."""
    found = version(card.driver_version) if isinstance(card, DrivenCard) else None
    return {} if found is None else {"driverVersion": found}


def _row(index: int, width: int, letters: Mapping[int, str]) -> str:
    return "".join(_SELF if peer == index else letters.get(peer, _NONE) for peer in range(width))


# --- capacities -----------------------------------------------------------------------------------


def in_bytes(amount: int) -> str:
    """Return bytes as the API server writes them, so that the stored text equals the sent one: `15Gi`."""
    return str(Quantity.from_int(amount, Format.BINARY_SI))


def counted(amount: int) -> str:
    """Return a plain number as the API server writes it: 1000 is `1k`."""
    return str(Quantity.from_int(amount))


def memory_capacity(size: int, scaling: Fraction = Fraction(1)) -> Json:
    """Return memory in whole MiB, so that the step of 1 MiB divides it. A request without `memory` takes all of it."""
    mebibytes = int(size * scaling) // MIB
    if mebibytes < 2:
        raise Unpublishable(f"{size} bytes of memory times {scaling} is not enough to be shared in steps of 1Mi")
    total = in_bytes(mebibytes * MIB)
    return {
        "value": total,
        "requestPolicy": {"default": total, "validRange": {"min": "1Mi", "max": total, "step": "1Mi"}},
    }


def cores_capacity(scaling: Fraction = Fraction(1)) -> Json:
    """Return cores in percent. A request without `core_rules` takes the whole card; `cores: 0` means no limit."""
    total = int(CORES * scaling)
    most = str(min(CORES, total))
    return {
        "value": counted(total),
        "requestPolicy": {"default": most, "validRange": {"min": "0", "max": most, "step": "1"}},
    }


def shares_capacity(slots: int) -> Json:
    """Return slots: every allocation takes one, whatever it requests."""
    return {"value": counted(slots), "requestPolicy": {"default": "1", "validValues": ["1"]}}


def parts_capacity(parts: int, default: int) -> Json:
    """Return equal parts of the hardware, counted. A request without them takes `default`."""
    total = counted(parts)
    # a range of a single number is refused by the API server
    offer: Json = {"validRange": {"min": "1", "max": total, "step": "1"}} if parts > 1 else {"validValues": ["1"]}
    return {"value": total, "requestPolicy": {"default": counted(default), **offer}}


def stepped_memory(size: int, fractions: Sequence[Fraction]) -> Json:
    """Return memory that the hardware cuts into these fractions of the card: ascending, the last one is 1."""
    total = size // MIB * MIB
    # not in whole MiB: a percentage of the card, to the byte, must not be more than the part that
    # covers it
    values = [in_bytes(int(total * part)) for part in fractions]
    if int(total * fractions[0]) < MIB:
        raise Unpublishable(f"{size} bytes of memory are not enough to be cut into parts of {fractions[0]}")
    return {"value": values[-1], "requestPolicy": {"default": values[-1], "validValues": values}}


def stepped_cores(fractions: Sequence[Fraction]) -> Json:
    """Return percent in the same steps, rounded down: thirds are 33, 66, 100."""
    values = [str(int(CORES * part)) for part in fractions]
    return {"value": str(CORES), "requestPolicy": {"default": str(CORES), "validValues": values}}


# --- devices and classes --------------------------------------------------------------------------


def shared_device(name: str, card: Card, attributes: Mapping[str, Json], capacity: Mapping[str, Json]) -> Json:
    """Return a card that several claims may share. A request without capacity takes all of it."""
    device: Json = {"name": name, "attributes": dict(attributes), "capacity": dict(capacity)}
    return device | {"allowMultipleAllocations": True} | fault_taints(card)


def fault_taints(card: Card) -> Json:
    """Return the taints that keep new claims off a card with a fault, or nothing."""
    return {"taints": taints_of(card.faults)} if card.faults else {}


def device_class(name: str, expression: str, extended_resource: str = "") -> Json:
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}},
        "spec": spec,
    }


def of_driver(driver: str) -> str:
    """Return CEL that matches every device of the driver."""
    return f'device.driver == "{driver}"'
