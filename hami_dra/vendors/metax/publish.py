"""MetaX cards as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and
DeviceClasses. Pure. `linkGroup` is MetaX's linkZone: the cards that MetaXLink joins.
"""

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.metax.rules import DRIVER
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.publishing import Json, cores_capacity, memory_capacity, shares_capacity
from hami_dra.vendors.unpartitioned import UnpartitionedVendor


class MetaxPublishing(UnpartitionedVendor):
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "metax"
    driver = DRIVER
    device_name = "gpu"
    whole_class = "metax-gpu.hami.io"
    shared_class = "metax-sgpu.hami.io"
    extended_resource = "metax-tech.com/gpu"

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:
        """Return memory and cores unscaled: the kernel driver isolates an sGPU, and has no more than the card."""
        return {
            names.CAP_MEMORY: memory_capacity(card.memory),
            names.CAP_CORES: cores_capacity(),
            names.CAP_SHARES: shares_capacity(settings[SLOTS]),
        }
