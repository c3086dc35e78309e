"""MetaX cards as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and DeviceClasses. Pure.
`linkGroup` is MetaX's linkZone: the cards that MetaXLink joins.
"""

from collections.abc import Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.vendors.metax import DRIVER
from hami_dra.vendors.publishing import (
    Json,
    Sharing,
    common_attributes,
    cores_capacity,
    device_class,
    driver_version,
    memory_capacity,
    of_driver,
    shared_device,
    shares_capacity,
)

WHOLE_CLASS: Final = "metax-gpu.hami.io"
SHARED_CLASS: Final = "metax-sgpu.hami.io"
EXTENDED_RESOURCE: Final = "metax-tech.com/gpu"


class Published:
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "metax"
    driver = DRIVER

    def devices(self, cards: Sequence[Card], sharing: Sharing) -> list[Json]:
        """An sGPU's memory and cores are kept apart by the kernel driver, which has no more than there is: no scaling."""
        common = common_attributes(cards)
        return [
            shared_device(
                f"gpu-{card.index}",
                card,
                common[card.index] | driver_version(card),
                {
                    names.CAP_MEMORY: memory_capacity(card.memory),
                    names.CAP_CORES: cores_capacity(),
                    names.CAP_SHARES: shares_capacity(sharing.slots),
                },
            )
            for card in sorted(cards, key=lambda card: card.index)
        ]

    def counter_sets(self, cards: Sequence[Card]) -> list[Json]:  # noqa: ARG002 (nothing is cut into parts)
        return []

    def device_classes(self) -> list[Json]:
        selected = of_driver(DRIVER)
        return [device_class(WHOLE_CLASS, selected, EXTENDED_RESOURCE), device_class(SHARED_CLASS, selected)]
