"""Kunlunxin XPUs as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and DeviceClasses. Pure.
`linkGroup` is the wing: cards 0-3 and 4-7. XPULink also joins cards across the wings (0-4, 1-5, 2-6, 3-7), so what is
connected is no measure of it.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.vendors.kunlunxin import DRIVER
from hami_dra.vendors.publishing import (
    Json,
    Sharing,
    common_attributes,
    cores_capacity,
    device_class,
    driver_version,
    of_driver,
    shared_device,
    shares_capacity,
    stepped_memory,
)

WHOLE_CLASS: Final = "kunlunxin-xpu.hami.io"
SHARED_CLASS: Final = "kunlunxin-vxpu.hami.io"
EXTENDED_RESOURCE: Final = "kunlunxin.com/xpu"

WING: Final = 4
"""Cards of one wing."""
SIZES: Final = (Fraction(1, 4), Fraction(1, 2), Fraction(1))
"""Of a vXPU: 24 GiB, 48 GiB and all of a card of 96 GiB."""
SLICES: Final = 4
"""The most vXPUs that fit on a card: the smallest size takes a quarter."""


class Published:
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "kunlunxin"
    driver = DRIVER

    def devices(self, cards: Sequence[Card], sharing: Sharing) -> list[Json]:  # noqa: ARG002 (the hardware decides)
        wings = {card.index: card.index // WING + 1 for card in cards if card.links}
        common = common_attributes(cards, wings)
        return [
            shared_device(
                f"xpu-{card.index}",
                card,
                common[card.index] | driver_version(card),
                {
                    names.CAP_MEMORY: stepped_memory(card.memory, SIZES),
                    names.CAP_CORES: cores_capacity(),
                    names.CAP_SHARES: shares_capacity(SLICES),
                },
            )
            for card in sorted(cards, key=lambda card: card.index)
        ]

    def counter_sets(self, cards: Sequence[Card]) -> list[Json]:  # noqa: ARG002 (nothing is cut into parts)
        return []

    def device_classes(self) -> list[Json]:
        selected = of_driver(DRIVER)
        return [device_class(WHOLE_CLASS, selected, EXTENDED_RESOURCE), device_class(SHARED_CLASS, selected)]
