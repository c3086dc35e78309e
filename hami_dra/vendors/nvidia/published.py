"""NVIDIA cards as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: GPU records. Out: JSON for ResourceSlices and DeviceClasses. Pure.
Beyond the attributes of all vendors a card carries, in the driver's own domain, those of NVIDIA's own driver.
"""

from collections.abc import Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card, GpuRecord
from hami_dra.vendors.nvidia import DRIVER
from hami_dra.vendors.publishing import (
    Json,
    Sharing,
    common_attributes,
    cores_capacity,
    memory_capacity,
    shares_capacity,
    string,
    version,
)

WHOLE_CLASS: Final = "nvidia-gpu.hami.io"
SHARED_CLASS: Final = "nvidia-vgpu.hami.io"
EXTENDED_RESOURCE: Final = "nvidia.com/gpu"


class Published:
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "nvidia"
    driver = DRIVER

    def devices(self, cards: Sequence[Card], sharing: Sharing) -> list[Json]:
        common = common_attributes(cards)
        return [
            {
                "name": f"gpu-{card.index}",
                "attributes": common[card.index] | {"type": string("gpu")} | software_attributes(card),
                "capacity": {
                    names.CAP_MEMORY: memory_capacity(card.memory, sharing.memory_scaling),
                    names.CAP_CORES: cores_capacity(sharing.core_scaling),
                    names.CAP_SHARES: shares_capacity(sharing.slots),
                },
                "allowMultipleAllocations": True,
            }
            for card in sorted(cards, key=lambda card: card.index)
        ]

    def device_classes(self) -> list[Json]:
        selector = f'device.driver == "{DRIVER}"'
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": name, "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY}},
                "spec": {"selectors": [{"cel": {"expression": selector}}], **extra},
            }
            for name, extra in (
                (WHOLE_CLASS, {"extendedResourceName": EXTENDED_RESOURCE}),
                (SHARED_CLASS, {}),
            )
        ]


def software_attributes(card: Card) -> dict[str, Json]:
    """Under the names that NVIDIA's own driver uses; what is not known is left out."""
    if not isinstance(card, GpuRecord):
        return {}
    attributes = {
        "brand": string(card.brand) if card.brand else None,
        "architecture": string(card.architecture) if card.architecture else None,
        "cudaComputeCapability": version(card.compute_capability),
        "driverVersion": version(card.driver_version),
        "cudaDriverVersion": version(card.runtime_version),
    }
    return {name: value for name, value in attributes.items() if value is not None}
