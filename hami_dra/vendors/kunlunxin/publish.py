"""Kunlunxin XPUs as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and
DeviceClasses. Pure. `linkGroup` is the wing: cards 0-3 and 4-7. XPULink also joins cards across the
wings (0-4, 1-5, 2-6, 3-7), so the links do not define it.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.kunlunxin.rules import DRIVER
from hami_dra.vendors.publishing import Json, cores_capacity, shares_capacity, stepped_memory
from hami_dra.vendors.unpartitioned import UnpartitionedVendor

WING: Final = 4
"""Cards of one wing."""
SIZES: Final = (Fraction(1, 4), Fraction(1, 2), Fraction(1))
"""Sizes of a vXPU: 24 GiB, 48 GiB and all of a card of 96 GiB."""
SLICES: Final = 4
"""The maximum number of vXPUs on a card: the smallest size takes a quarter."""


class KunlunxinPublishing(UnpartitionedVendor):
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "kunlunxin"
    driver = DRIVER
    device_name = "xpu"
    whole_class = "kunlunxin-xpu.hami.io"
    shared_class = "kunlunxin-vxpu.hami.io"
    extended_resource = "kunlunxin.com/xpu"

    def groups(self, cards: Sequence[Card]) -> Mapping[int, int]:
        return {card.index: card.index // WING + 1 for card in cards if card.links}

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:  # noqa: ARG002 (the hardware decides)
        return {
            names.CAP_MEMORY: stepped_memory(card.memory, SIZES),
            names.CAP_CORES: cores_capacity(),
            names.CAP_SHARES: shares_capacity(SLICES),
        }
