"""Enflame GCUs as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records and the slice factor. Out: JSON for
ResourceSlices and DeviceClasses. Pure. A card has f equal slices. Memory and cores are handed out
in the same f steps, so a percentage is rounded up to a slice by the allocator itself, for each
card: 25 percent are 25 on a card of four, 33 on a card of three. Memory and cores keep claims
apart; `slices` only counts, so a request that names the two does not depend on f.
"""

from fractions import Fraction
from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.enflame.options import CARD_SLICES
from hami_dra.vendors.enflame.rules import DRIVER
from hami_dra.vendors.publishing import Json, parts_capacity, shares_capacity, stepped_cores, stepped_memory
from hami_dra.vendors.unpartitioned import UnpartitionedVendor

SLICES: Final = "slices"
"""Capacity: slices of the card."""


class EnflamePublishing(UnpartitionedVendor):
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "enflame"
    driver = DRIVER
    device_name = "gcu"
    whole_class = "enflame-gcu.hami.io"
    shared_class = "enflame-vgcu.hami.io"
    extended_resource = "enflame.com/gcu"

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:
        steps = [Fraction(slices, settings[CARD_SLICES]) for slices in range(1, settings[CARD_SLICES] + 1)]
        return {
            names.CAP_MEMORY: stepped_memory(card.memory, steps),
            names.CAP_CORES: stepped_cores(steps),
            names.CAP_SHARES: shares_capacity(settings[CARD_SLICES]),
            SLICES: parts_capacity(settings[CARD_SLICES], default=1),
        }
