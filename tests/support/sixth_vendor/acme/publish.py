"""Acme's cards as published devices."""

from acme.options import RESERVED
from acme.rules import DRIVER
from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.publishing import Json, cores_capacity, memory_capacity, shares_capacity
from hami_dra.vendors.unpartitioned import UnpartitionedVendor


class AcmePublishing(UnpartitionedVendor):
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "acme"
    driver = DRIVER
    device_name = "card"
    whole_class = "acme-card.example.com"
    shared_class = "acme-share.example.com"
    extended_resource = "acme.example.com/card"

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:
        return {
            names.CAP_MEMORY: memory_capacity(card.memory - settings[RESERVED]),
            names.CAP_CORES: cores_capacity(),
            names.CAP_SHARES: shares_capacity(settings[SLOTS]),
        }
