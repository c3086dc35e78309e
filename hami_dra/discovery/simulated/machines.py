"""Reference machines, read from the YAML files of the folder `data/`: one file per machine.

Called by the fleet, by `hami-dra slices` and by tests. In: the name of a machine and of a node. Out: a `Machine` record, as
discovery would find it there; the same names always give the same uuids. Must not talk to a cluster or to hardware.

How far two cards are apart follows from where they sit: same `switch`, same root complex, same NUMA node, or neither.
Cards of one `island` have `lanes` fast-link lanes to each other.
"""

import dataclasses
import uuid
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any, Final

import yaml
from pydantic import Field, PlainValidator

from hami_dra.api.config import ConfigModel
from hami_dra.api.hardware import Card, GpuRecord, Machine, PcieDistance
from hami_dra.api.quantity import Quantity

_FOLDER: Final = files("hami_dra.discovery.simulated") / "data"
_UUIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.hami.io")

Amount = Annotated[int, PlainValidator(lambda text: Quantity.parse(text).value())]


class UnknownMachine(ValueError):
    """No reference machine has this name; the message lists those there are."""


class Place(ConfigModel):
    """Where a card sits."""

    pci: str
    root: str
    numa: int
    switch: str = ""
    island: str = ""


class Gpu(ConfigModel):
    """What a GpuRecord has beyond a Card."""

    brand: str
    architecture: str
    compute_capability: str
    driver_version: str
    runtime_version: str


class CardGroup(ConfigModel):
    """Cards of one kind, numbered from 0 in the order of `places`."""

    vendor: str
    product: str
    memory: Amount
    uuid_prefix: str = ""
    gpu: Gpu | None = None
    lanes: Annotated[int, Field(ge=0, le=35)] = 0
    places: tuple[Place, ...]


class MachineFile(ConfigModel):
    name: str
    summary: str
    cpu: int
    memory: Amount
    cards: tuple[CardGroup, ...]


@lru_cache
def machine_names() -> tuple[str, ...]:
    return tuple(
        sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml"))
    )


def summary(name: str) -> str:
    """One line for people."""
    return _read(name).summary


def machine(name: str, node: str) -> Machine:
    """The machine `name` as the node `node` would be. Raises UnknownMachine."""
    described = _read(name)
    return Machine(
        name=node,
        instance_type=described.name,
        cpu=described.cpu,
        memory=described.memory,
        cards=tuple(_card(group, node, index) for group in described.cards for index in range(len(group.places))),
    )


@lru_cache
def _read(name: str) -> MachineFile:
    if name not in machine_names():
        raise UnknownMachine(f"there is no machine {name!r}; choose one of: {', '.join(machine_names())}")
    return MachineFile.model_validate(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def _card(group: CardGroup, node: str, index: int) -> Card:
    place = group.places[index]
    peers = {peer: other for peer, other in enumerate(group.places) if peer != index}
    card = Card(
        vendor=group.vendor,
        index=index,
        uuid=f"{group.uuid_prefix}{uuid.uuid5(_UUIDS, f'{node}/{group.vendor}/{index}')}",
        product=group.product,
        memory=group.memory,
        pci_bus_id=place.pci,
        pcie_root=place.root,
        numa_node=place.numa,
        links={peer: group.lanes for peer, other in peers.items() if place.island and place.island == other.island},
        distances={peer: _distance(place, other) for peer, other in peers.items()},
    )
    return GpuRecord(**_fields(card), **group.gpu.model_dump()) if group.gpu else card


def _fields(card: Card) -> dict[str, Any]:
    return {field.name: getattr(card, field.name) for field in dataclasses.fields(card)}


def _distance(one: Place, other: Place) -> PcieDistance:
    if one.switch and one.switch == other.switch:
        return PcieDistance.SINGLE_SWITCH
    if one.root == other.root:
        return PcieDistance.HOST_BRIDGE
    if one.numa == other.numa:
        return PcieDistance.SAME_CPU
    return PcieDistance.CROSS_CPU
