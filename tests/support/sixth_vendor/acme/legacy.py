"""Acme's resource names from before DRA: a count, and MiB of memory."""

from acme.publish import AcmePublishing
from hami_dra.api import names
from hami_dra.vendors.legacy import MAX_CARDS, MIB, ContainerResources, LegacyReading, LegacyRequest, WholeByCount
from hami_dra.vendors.quotas import Counted, Quotas, cards

CARD = AcmePublishing.extended_resource
MEMORY = "acme.example.com/memory"


class AcmeLegacy(WholeByCount, of=AcmePublishing):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    resources = (CARD, MEMORY)
    plugin_resources = (CARD,)
    quotas = Quotas((cards(CARD, Counted.EVERY),))

    def read(self, resources: ContainerResources) -> LegacyReading:
        resources.needs(MEMORY, CARD)
        count = resources.whole(CARD, "counts cards", MAX_CARDS)
        memory = resources.whole(MEMORY, "is MiB of each card", 1 << 20, in_mib=True)
        if not count:
            return LegacyReading(None)
        return LegacyReading(LegacyRequest(count, {} if memory is None else {names.CAP_MEMORY: memory * MIB}))
