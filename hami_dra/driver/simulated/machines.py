"""Reference machines, read from the YAML files of the folder `data/`: one file per machine.

Called by the fleet, by `hami-dra slices` and by tests. In: the name of a machine and of a node.
Out: a `Machine` record, as discovery would find it there; equal names always give equal uuids. Must
not talk to a cluster or to hardware.

A machine with a `fabric` is one of several whose cards are linked across machines (NVL72). Its
cards know their domain, all of the fabric, and their clique, a partition of it whose cards reach
each other; so does the label of the node.

The distance of two cards follows from their places: below one switch (`a/1` is a switch below
switch `a`), on one root complex, on one NUMA node, or none of it. Cards of one `island` have
`lanes` fast-link lanes to each other; `links` names further pairs, and their lanes.
"""

import uuid
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Final

import yaml
from msgspec import Struct
from pydantic import Field, PlainValidator
from pydantic.alias_generators import to_snake

from hami_dra.api.config import ConfigModel
from hami_dra.api.errors import InputError
from hami_dra.api.hardware import Card, Machine, PcieDistance
from hami_dra.api.quantity import Quantity
from hami_dra.vendors.plugin import Imitation
from hami_dra.vendors.registry import PLUGINS, plugin_of

_FOLDER: Final = files("hami_dra.driver.simulated") / "data"
_UUIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.hami.io")

Lanes = Annotated[int, Field(ge=0, le=35)]
Amount = Annotated[int, PlainValidator(lambda text: Quantity.parse(text).value())]


class UnknownMachine(InputError):
    """No reference machine has this name; the message lists the existing ones."""


class CardLocation(ConfigModel):
    """The place of a card."""

    pci: str
    root: str
    numa: int
    switch: str = ""
    island: str = ""


class CardGroup(ConfigModel):
    """Cards of one kind, numbered from 0 in the order of `places`."""

    vendor: str
    product: str
    memory: Amount
    uuid_prefix: str = ""
    record: dict[str, Any] | None = None
    """What the vendor's record (`VendorPlugin.record`) has beyond a Card; None: the vendor has none here."""
    lanes: Lanes = 0
    links: tuple[tuple[int, int, Lanes], ...] = ()
    """One card, another one, and the lanes between them."""
    places: tuple[CardLocation, ...]


class Fabric(ConfigModel):
    """A fast interconnect across machines."""

    nodes: Annotated[int, Field(ge=1)]
    """Machines in one domain."""
    label: str
    """Key of the node label whose value is `<uuid of the domain>.<number of the clique>`."""


class FabricMember(Struct, frozen=True):
    """The place of a node in a fabric."""

    first_node: str
    """The first node of the domain, which names it."""
    clique: int
    """From 1."""


class MachineFile(ConfigModel):
    name: str
    summary: str
    cpu: int
    memory: Amount
    cards: tuple[CardGroup, ...]
    fabric: Fabric | None = None


@lru_cache
def machine_names() -> tuple[str, ...]:
    return tuple(
        sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml"))
    )


def summary(name: str) -> str:
    return _read(name).summary


def nodes_of_fabric(name: str) -> int:
    """Return the number of nodes in one domain of the machine's fabric; 0: it has none. Raises UnknownMachine."""
    fabric = _read(name).fabric
    return fabric.nodes if fabric else 0


def machine(name: str, node: str, member: FabricMember | None = None) -> Machine:
    """Return the machine `name` on the node `node`. `member`: its place in the machine's fabric;
    None: the only node of a domain. Raises UnknownMachine.
    """
    described = _read(name)
    place, labels = None, {}
    if described.fabric:
        member = member or FabricMember(node, 1)
        place = (str(uuid.uuid5(_UUIDS, f"fabric/{member.first_node}")), member.clique)
        labels = {described.fabric.label: f"{place[0]}.{place[1]}"}
    return Machine(
        name=node,
        instance_type=described.name,
        cpu=described.cpu,
        memory=described.memory,
        cards=tuple(
            _card(group, node, index, place) for group in described.cards for index in range(len(group.places))
        ),
        labels=labels,
    )


@lru_cache
def _read(name: str) -> MachineFile:
    if name not in machine_names():
        raise UnknownMachine(f"there is no machine {name!r}; choose one of: {', '.join(machine_names())}")
    return MachineFile.model_validate(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def _card(group: CardGroup, node: str, index: int, fabric: tuple[str, int] | None) -> Card:
    place = group.places[index]
    peers = {peer: other for peer, other in enumerate(group.places) if peer != index}
    links = {peer: group.lanes for peer, other in peers.items() if place.island and place.island == other.island}
    for one, other, lanes in group.links:
        if index in (one, other):
            links[other if index == one else one] = lanes
    card = Card(
        vendor=group.vendor,
        index=index,
        uuid=f"{group.uuid_prefix}{uuid.uuid5(_UUIDS, f'{node}/{group.vendor}/{index}')}",
        product=group.product,
        memory=group.memory,
        pci_bus_id=place.pci,
        pcie_root=place.root,
        numa_node=place.numa,
        links=dict(sorted(links.items())),
        distances={peer: _distance(place, other) for peer, other in peers.items()},
    )
    fields = {name: getattr(card, name) for name in card.__struct_fields__}
    if group.record is None:
        return card
    own = {to_snake(name): value for name, value in group.record.items()}
    return plugin_of(group.vendor).record(**fields, **own, **({"fabric": fabric} if fabric else {}))


def _distance(one: CardLocation, other: CardLocation) -> PcieDistance:
    if one.switch and one.switch == other.switch:
        return PcieDistance.SINGLE_SWITCH
    if one.switch and one.switch.split("/")[0] == other.switch.split("/")[0]:
        return PcieDistance.MULTIPLE_SWITCHES
    if one.root == other.root:
        return PcieDistance.HOST_BRIDGE
    if one.numa == other.numa:
        return PcieDistance.SAME_CPU
    return PcieDistance.CROSS_CPU


# --- as other drivers publish them -----------------------------------------------------------------


class NotPublishedBy(InputError):
    """This driver does not publish such cards; the message says which machine and which driver."""


def foreign_devices(driver: str, machine: Machine) -> list[dict[str, Any]]:
    """Return the devices that `driver` would publish on the machine. Raises NotPublishedBy."""
    if driver not in DRIVERS:
        raise NotPublishedBy(f"there is no imitation of driver {driver!r}; choose one of: {', '.join(DRIVERS)}")
    vendor, publish = DRIVERS[driver]
    cards = [card for card in machine.cards if card.vendor == vendor]
    if not cards:
        raise NotPublishedBy(f"{machine.instance_type} has no cards that {driver} publishes (vendor {vendor})")
    return publish(machine, cards)


DRIVERS: Final[dict[str, tuple[str, Imitation]]] = {
    driver: (plugin.name, publish) for plugin in PLUGINS for driver, publish in plugin.imitations.items()
}
"""Driver → the vendor of its cards, and the function that creates the devices."""
