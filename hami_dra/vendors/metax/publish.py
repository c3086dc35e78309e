"""MetaX cards as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and
DeviceClasses. Pure. `linkGroup` is MetaX's linkZone: the cards that MetaXLink joins.
"""

from typing import Final

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.metax.rules import DRIVER
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.publishing import Json, cores_capacity, memory_capacity, shares_capacity
from hami_dra.vendors.unpartitioned import UnpartitionedVendor

WHOLE_CLASS: Final = "metax-gpu.hami.io"
SHARED_CLASS: Final = "metax-sgpu.hami.io"
EXTENDED_RESOURCE: Final = "metax-tech.com/gpu"


class MetaxPublishing(UnpartitionedVendor):
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "metax"
    driver = DRIVER
    device_name = "gpu"
    whole_class = WHOLE_CLASS
    shared_class = SHARED_CLASS
    extended_resource = EXTENDED_RESOURCE

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:
        """Return memory and cores without scaling: the kernel driver isolates an sGPU's, and has no
        more than the card has.
        """
        return {
            names.CAP_MEMORY: memory_capacity(card.memory),
            names.CAP_CORES: cores_capacity(),
            names.CAP_SHARES: shares_capacity(settings[SLOTS]),
        }
