"""HAMi's Enflame resource names (HAMi v2.7.0 D/enflame/device.go:70-124, the rules of the release
that the names come from; those of DRS profiles by HAMi HEAD).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. The number of slices
of a card is not known before a node is chosen: a percentage is rounded up to a slice by the
allocator, for each card.
"""

from typing import Final

from hami_dra.api import names
from hami_dra.vendors import legacy
from hami_dra.vendors.enflame.publish import SLICES, EnflamePublishing
from hami_dra.vendors.quotas import Counted, Quotas, cards, percent

GCU: Final = EnflamePublishing.extended_resource
VGCU: Final = "enflame.com/vgcu"
PERCENTAGE: Final = "enflame.com/vgcu-percentage"
DRS: Final = "enflame.com/drs-gcu"
MEMORY: Final = "enflame.com/gcu-memory"
CORES: Final = "enflame.com/gcu-core"
_OF_DRS: Final = (DRS, MEMORY, CORES)
_ALL: Final = 100
_MOST_SLICES: Final = 10
_MOST_GIB: Final = 96
"""HAMi takes a number above twice the largest profile, which has the 48 GiB of an S60, for MiB."""


class EnflameLegacy(legacy.WholeByCount, of=EnflamePublishing):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    resources: tuple[str, ...] = (GCU, VGCU, PERCENTAGE, *_OF_DRS)
    plugin_resources: tuple[str, ...] = (GCU, VGCU)
    quotas = Quotas((cards(GCU, Counted.WHOLE), cards(VGCU, Counted.PART), percent(PERCENTAGE)))

    def read(self, resources: legacy.ContainerResources) -> legacy.LegacyReading:
        whole = resources.whole(GCU, "counts whole GCUs", legacy.MAX_CARDS)
        slices = resources.whole(VGCU, "counts vGCUs, parts of different GCUs", legacy.MAX_CARDS)
        percent = resources.whole(PERCENTAGE, "is a percentage of the GCU", _ALL)
        if (drs := _drs(resources)) is not None:
            if whole or slices:
                raise resources.both(
                    next(filter(resources.__contains__, _OF_DRS)), GCU if whole else VGCU, "one of them"
                )
            return legacy.LegacyReading(drs)
        if whole and slices:
            raise resources.both(GCU, VGCU, "whole GCUs or for a vGCU")
        resources.needs(PERCENTAGE, VGCU)
        if whole:
            return legacy.LegacyReading(legacy.LegacyRequest(whole))
        if not slices:
            return legacy.LegacyReading(None)
        if slices > 1:
            warnings = []
            if percent not in (None, _ALL):
                warnings.append(f"{resources.field(PERCENTAGE)} is ignored: {slices} vGCUs are {slices} whole GCUs")
            return legacy.LegacyReading(legacy.LegacyRequest(slices), tuple(warnings))
        percent = _ALL if percent is None else max(percent, 1)
        if percent == _ALL:
            return legacy.LegacyReading(legacy.LegacyRequest(1))
        return legacy.LegacyReading(legacy.LegacyRequest(1, {names.CAP_CORES: percent}, percent))


def _drs(resources: legacy.ContainerResources) -> legacy.LegacyRequest | None:
    """Return the request for slices of one card by the names of DRS profiles; None without one
    (D/enflame/device.go, GenerateResourceRequests). `drs-gcu` counts slices, and decides alone.
    """
    count = resources.whole(DRS, "counts slices of one GCU", _MOST_SLICES)
    memory = resources.whole(MEMORY, "is the memory of a slice in GiB or MiB", legacy.MAX_MIB)
    cores = resources.whole(CORES, "is a percentage of the GCU", _ALL)
    for name, amount in ((DRS, count), (MEMORY, memory), (CORES, cores)):
        if amount == 0:
            raise legacy.InvalidLegacy(f"{resources.field(name)} must be greater than 0")
    if count:
        return legacy.LegacyRequest(1, {SLICES: count})
    if memory:
        gibibytes = memory if memory <= _MOST_GIB else -(-memory // 1024)
        return legacy.LegacyRequest(
            1, {names.CAP_MEMORY: gibibytes * 1024 * legacy.MIB} | ({names.CAP_CORES: cores} if cores else {})
        )
    if not cores or cores == _ALL:
        return legacy.LegacyRequest(1) if cores else None
    return legacy.LegacyRequest(1, {names.CAP_CORES: cores}, cores)
