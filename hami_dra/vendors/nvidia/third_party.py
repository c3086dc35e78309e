"""NVIDIA cards as other people's drivers publish them, for `--manage` and for the compatibility with HAMi-DRA.

Called by the simulated fleet. In: a machine and its NVIDIA cards. Out: devices as plain JSON. Pure.
Shapes as published in 2026 by kubernetes-sigs/dra-driver-nvidia-gpu (gate ConsumableShares, mode
`memory`) and Project-HAMi/k8s-dra-driver (HAMi-DRA's NVIDIA driver).
"""

from collections.abc import Sequence

from hami_dra.api import names
from hami_dra.api.hardware import Card, Machine
from hami_dra.vendors.nvidia.publish import software_attributes
from hami_dra.vendors.publishing import Json, cores_capacity, integer, memory_capacity, place_attributes, string


def nvidia_devices(_machine: Machine, cards: Sequence[Card]) -> list[Json]:
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


def hami_devices(_machine: Machine, cards: Sequence[Card]) -> list[Json]:
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
