"""HAMi's Ascend resource names and annotations (HAMi D/ascend/device.go: MutateAdmission,
trimMemory, GenerateResourceRequests; pkg/device/devices.go: CheckUUID).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. Each series of chips
has names of its own: `huawei.com/Ascend910B4` counts cards, `huawei.com/Ascend910B4-memory` is the
memory of one in MiB, which becomes the smallest template that holds it. HAMi's soft slicing
(`huawei.com/vnpu-mode: hami-core`, and the names with `-core` that it reads) is refused.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hami_dra.api import names
from hami_dra.cel import quote
from hami_dra.vendors import legacy
from hami_dra.vendors.ascend.models import SERIES, AscendSeries
from hami_dra.vendors.ascend.publish import class_name, resource_name
from hami_dra.vendors.ascend.rules import DRIVER, MODEL
from hami_dra.vendors.quotas import Quotas, cards, mebibytes

VNPU_MODE: Final = "huawei.com/vnpu-mode"
HAMI_CORE: Final = "hami-core"
_MAX_CORES: Final = 2**31 - 1
_ATTRIBUTES: Final = f'device.attributes["{DRIVER}"]'
_UUID: Final = 'device.attributes["hami.io"].uuid'


class ResourceFamily(NamedTuple):
    """The resource names of one series under one of its names."""

    series: AscendSeries
    cards: str
    memory: str
    cores: str


FAMILIES: Final = tuple(
    ResourceFamily(series, cards, f"{cards}-memory", f"{cards}-core")
    for series in SERIES.values()
    for cards in map(resource_name, series.names)
)
LISTS: Final = {
    f"hami.io/{verb}-{name}-uuid": (series.name, verb == "use")
    for series in SERIES.values()
    for name in series.names
    for verb in ("use", "no-use")
}
"""Annotation → the series whose cards it is about, and whether it names the only ones to use."""


class AscendLegacy(legacy.LegacyVendor):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    name = "ascend"
    driver = DRIVER
    resources: tuple[str, ...] = tuple(name for family in FAMILIES for name in family[1:])
    plugin_resources: tuple[str, ...] = tuple(family.cards for family in FAMILIES)
    quotas = Quotas(
        tuple(
            name
            for family in FAMILIES
            for name in (
                cards(family.cards, model=family.series.name),
                mebibytes(family.memory, model=family.series.name),
            )
        )
    )

    def read(self, resources: legacy.ContainerResources) -> legacy.LegacyReading:
        named = [family for family in FAMILIES if any(name in resources for name in family[1:])]
        if not named:
            return legacy.LegacyReading(None)
        family, *others = named
        for other in others:
            one, another = (next(name for name in each[1:] if name in resources) for each in (family, other))
            raise resources.both(one, another, "NPUs of one series in each container")
        return legacy.LegacyReading(_request(family, resources))

    def device_class(self, request: legacy.CardChoice) -> str:
        if request.model not in SERIES:
            raise legacy.InvalidLegacy(f"{request.model!r} is no series of NPUs; use one of {', '.join(SERIES)}")
        return class_name(request.model, vnpu=not self.is_plain(request))

    def filters(self, annotations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return the lists of cards; HAMi applies each to the cards of its series only."""
        if str(annotations.get(VNPU_MODE, "")) == HAMI_CORE:
            raise legacy.InvalidLegacy(
                f"annotation {VNPU_MODE} is {HAMI_CORE}, and soft slices of an NPU are not supported: remove the annotation, and "
                "ask for the memory of a template instead; the smallest that holds it is used"
            )
        lists = {name: legacy.comma_list(annotations, name) for name in LISTS}
        return {name: items for name, items in lists.items() if items is not None}

    def selectors(self, filters: legacy.Filters) -> tuple[str, ...]:
        legacy.refuse_unknown(filters, LISTS)
        return tuple(_selector(name, items) for name, items in sorted(filters.items()))


def _request(family: ResourceFamily, resources: legacy.ContainerResources) -> legacy.LegacyRequest | None:
    """Return the request for a series; None for a count of 0. Raises InvalidLegacy."""
    series = family.series
    resources.needs(family.memory, family.cards)
    resources.needs(family.cores, family.cards)
    count = resources.whole(family.cards, f"counts NPUs of series {series.name}", legacy.MAX_CARDS)
    memory = resources.whole(family.memory, "is MiB of one NPU", legacy.MAX_MIB, in_mib=True)
    if resources.whole(family.cores, "is a percentage of an NPU's cores", _MAX_CORES):
        raise legacy.InvalidLegacy(
            f"{resources.field(family.cores)} is only for HAMi's soft slices, which are not supported: remove it; a template brings "
            "its cores"
        )
    if not count:
        return None
    if memory is not None and memory > series.most:
        raise legacy.InvalidLegacy(
            f"{resources.field(family.memory)} is {memory}, and an NPU of series {series.name} has {series.most}: write at most that, "
            "or leave it out for a whole NPU"
        )
    template = None if memory is None else series.template_for(memory)
    if template is None:
        return legacy.LegacyRequest(_modules(family, resources, count) * series.module, model=series.name)
    if count > 1:
        raise legacy.InvalidLegacy(
            f"{resources.field(family.memory)} is {memory}, which is a vNPU ({template.name}), and a container can have only one: write "
            f'{family.cards}: "1", or leave the memory out for {count} whole NPUs'
        )
    return legacy.LegacyRequest(1, {names.CAP_MEMORY: template.memory * legacy.MIB}, model=series.name, partition=True)


def _modules(family: ResourceFamily, resources: legacy.ContainerResources, count: int) -> int:
    """Return how many modules a number of whole NPUs takes; a single NPU takes its module, as in HAMi.

    Raises InvalidLegacy for another number that is no multiple.
    """
    size = family.series.module
    if count > 1 and count % size:
        raise legacy.InvalidLegacy(
            f"{resources.field(family.cards)} is {count}, and NPUs of series {family.series.name} are taken by modules of {size}: write "
            f'"{count + size - count % size}"'
        )
    return -(-count // size)


def _selector(name: str, items: tuple[str, ...]) -> str:
    """Return CEL that is true for the cards a list allows, and for those of other series."""
    series, wanted = LISTS[name]
    listed = f"{_UUID} in [{', '.join(quote(item) for item in items)}]"
    chosen = listed if wanted else f"!({listed})"
    return legacy.checked_selector(name, items, f'{_ATTRIBUTES}.?{MODEL}.orValue("") != {quote(series)} || {chosen}')
