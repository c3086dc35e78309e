"""HAMi's Enflame resource names (HAMi v2.7.0 D/enflame/device.go:70-124, the rules of the release
that the names come from).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. The number of slices
of a card is not known before a node is chosen: a percentage is rounded up to a slice by the
allocator, for each card.
"""

from typing import Final

from hami_dra.api import names
from hami_dra.vendors.enflame.publish import EXTENDED_RESOURCE, SHARED_CLASS, WHOLE_CLASS
from hami_dra.vendors.enflame.rules import DRIVER
from hami_dra.vendors.legacy import (
    MAX_CARDS,
    ContainerResources,
    LegacyReading,
    LegacyRequest,
    WholeByCount,
)
from hami_dra.vendors.quotas import Counted, Quotas, cards, percent

GCU: Final = EXTENDED_RESOURCE
VGCU: Final = "enflame.com/vgcu"
PERCENTAGE: Final = "enflame.com/vgcu-percentage"
_ALL: Final = 100


class EnflameLegacy(WholeByCount):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    name = "enflame"
    driver = DRIVER
    whole_class = WHOLE_CLASS
    shared_class = SHARED_CLASS
    resources: tuple[str, ...] = (GCU, VGCU, PERCENTAGE)
    plugin_resources: tuple[str, ...] = (GCU, VGCU)
    quotas = Quotas((cards(GCU, Counted.WHOLE), cards(VGCU, Counted.PART), percent(PERCENTAGE)))

    def read(self, resources: ContainerResources) -> LegacyReading:
        whole = resources.whole(GCU, "counts whole GCUs", MAX_CARDS)
        slices = resources.whole(VGCU, "counts vGCUs, parts of different GCUs", MAX_CARDS)
        percent = resources.whole(PERCENTAGE, "is a percentage of the GCU", _ALL)
        if whole and slices:
            raise resources.both(GCU, VGCU, "whole GCUs or for a vGCU")
        resources.needs(PERCENTAGE, VGCU)
        if whole:
            return LegacyReading(LegacyRequest(whole))
        if not slices:
            return LegacyReading(None)
        if slices > 1:
            warnings = []
            if percent not in (None, _ALL):
                warnings.append(f"{resources.field(PERCENTAGE)} is ignored: {slices} vGCUs are {slices} whole GCUs")
            return LegacyReading(LegacyRequest(slices), tuple(warnings))
        percent = _ALL if percent is None else max(percent, 1)
        if percent == _ALL:
            return LegacyReading(LegacyRequest(1))
        return LegacyReading(LegacyRequest(1, {names.CAP_CORES: percent}, percent))
