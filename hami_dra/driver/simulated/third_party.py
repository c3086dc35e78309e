"""Devices as other projects' drivers publish them, for `--manage` and for the compatibility with
HAMi-DRA.

Called by the fleet and by tests. In: a machine. Out: devices as plain JSON, by the imitated driver.
Pure. Shapes as published in 2026 by: kubernetes-sigs/dra-driver-nvidia-gpu (gate ConsumableShares,
mode `memory`), the AWS Neuron DRA driver (names and values from slices captured on trn1 and trn2),
Project-HAMi/k8s-dra-driver (HAMi-DRA's NVIDIA driver).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from hami_dra.api import names
from hami_dra.api.hardware import Card, Machine
from hami_dra.vendors.neuron.instances import ROW, Wiring, instance_of
from hami_dra.vendors.neuron.publish import device_groups
from hami_dra.vendors.nvidia.publish import software_attributes
from hami_dra.vendors.publishing import cores_capacity, integer, memory_capacity, place_attributes, string

Json = dict[str, Any]


class NotPublishedBy(ValueError):
    """This driver does not publish such cards; the message says which machine and which driver."""


def foreign_devices(driver: str, machine: Machine) -> list[Json]:
    """Return the devices that `driver` would publish on the machine. Raises NotPublishedBy."""
    if driver not in DRIVERS:
        raise NotPublishedBy(f"there is no imitation of driver {driver!r}; choose one of: {', '.join(DRIVERS)}")
    vendor, publish = DRIVERS[driver]
    cards = [card for card in machine.cards if card.vendor == vendor]
    if not cards:
        raise NotPublishedBy(f"{machine.instance_type} has no cards that {driver} publishes (vendor {vendor})")
    return publish(machine, cards)


def _nvidia_device(_machine: Machine, cards: Sequence[Card]) -> list[Json]:
    return [
        {
            "name": f"gpu-{card.index}",
            "attributes": {
                "type": string("gpu"),
                "uuid": string(card.uuid),
                "productName": string(card.product),
                **software_attributes(card),
                **place_attributes(card),
            },
            "capacity": {"memory": memory_capacity(card.memory)},
            "allowMultipleAllocations": True,
        }
        for card in cards
    ]


def _hami_device(_machine: Machine, cards: Sequence[Card]) -> list[Json]:
    return [
        {
            "name": f"hami-gpu-{card.index}",
            "attributes": {
                "type": string("hami-gpu"),
                "minor": integer(card.index),
                "uuid": string(card.uuid),
                "productName": string(card.product),
                **software_attributes(card),
                # not the standard pciBusID: their name
                "pcieBusID": string(card.pci_bus_id),
                names.ATTR_PCIE_ROOT: string(card.pcie_root),
            },
            "capacity": {"cores": cores_capacity(), "memory": memory_capacity(card.memory)},
            "allowMultipleAllocations": True,
        }
        for card in cards
    ]


def _neuron_device(machine: Machine, cards: Sequence[Card]) -> list[Json]:
    """Return whole devices."""
    groups = device_groups(cards)
    devices = []
    for card in cards:
        attributes = {
            "deviceId": integer(card.index),
            "instanceType": string(machine.instance_type),
            "resourceType": string("neuron_device"),
            "neuronDriverVersion": string("2.25.4.0"),
            "draDriverVersion": string("1.0.0"),
            **groups[card.index],
            names.ATTR_PCIE_ROOT: string(card.pcie_root),
        }
        instance = instance_of(machine.instance_type)
        if instance is not None and instance.wiring is Wiring.TORUS:
            attributes["topology_x"] = integer(card.index // ROW)
            attributes["topology_y"] = integer(card.index % ROW)
        devices.append({"name": f"neuron-device-{card.index}", "attributes": attributes})
    return devices


DRIVERS: Final[dict[str, tuple[str, Callable[[Machine, Sequence[Card]], list[Json]]]]] = {
    "gpu.nvidia.com": ("nvidia", _nvidia_device),
    "hami-core-gpu.project-hami.io": ("nvidia", _hami_device),
    "neuron.aws.com": ("neuron", _neuron_device),
}
"""Driver → the vendor of its cards, and the function that creates the devices."""
