"""HAMi's Kunlunxin resource names (HAMi D/kunlun/device.go, vdevice.go: trimMemory,
MutateAdmission, GenerateResourceRequests).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. A vXPU without memory
is a whole card, but stays a vXPU: no extended resource has that name.
"""

from typing import Final

from hami_dra.api import names
from hami_dra.vendors import legacy
from hami_dra.vendors.kunlunxin.publish import KunlunxinPublishing
from hami_dra.vendors.quotas import Counted, Quotas, cards, mebibytes

XPU: Final = KunlunxinPublishing.extended_resource
VXPU: Final = "kunlunxin.com/vxpu"
VXPU_MEMORY: Final = "kunlunxin.com/vxpu-memory"
_CORES_OF_SIZE: Final = {24_576: 25, 49_152: 50, 98_304: 100}
"""MiB of a slice → percent of the cores that come with it (memory x 100 / 98304)."""
_MOST: Final = max(_CORES_OF_SIZE)


class KunlunxinLegacy(legacy.WholeByCount, of=KunlunxinPublishing):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    resources: tuple[str, ...] = (XPU, VXPU, VXPU_MEMORY)
    plugin_resources: tuple[str, ...] = (XPU, VXPU)
    quotas = Quotas((cards(XPU, Counted.WHOLE), cards(VXPU, Counted.PART), mebibytes(VXPU_MEMORY)))

    def read(self, resources: legacy.ContainerResources) -> legacy.LegacyReading:
        whole = resources.whole(XPU, "counts whole XPUs", legacy.MAX_CARDS)
        slices = resources.whole(VXPU, "counts vXPUs, parts of different XPUs", legacy.MAX_CARDS)
        memory = resources.whole(VXPU_MEMORY, "counts MiB of each vXPU", legacy.MAX_MIB, in_mib=True)
        if whole and slices:
            raise resources.both(XPU, VXPU, "whole XPUs or for vXPUs")
        resources.needs(VXPU_MEMORY, VXPU)
        if whole:
            return legacy.LegacyReading(legacy.LegacyRequest(whole))
        if not slices:
            return legacy.LegacyReading(None)
        if memory is None:
            return legacy.LegacyReading(legacy.LegacyRequest(slices, {names.CAP_CORES: _CORES_OF_SIZE[_MOST]}))
        size = min((size for size in _CORES_OF_SIZE if memory <= size), default=_MOST)
        warnings = (
            [f"{resources.field(VXPU_MEMORY)} is {memory}, more than a card has; {_MOST} is used"]
            if memory > size
            else []
        )
        capacity = {names.CAP_MEMORY: size * legacy.MIB, names.CAP_CORES: _CORES_OF_SIZE[size]}
        return legacy.LegacyReading(legacy.LegacyRequest(slices, capacity), tuple(warnings))
