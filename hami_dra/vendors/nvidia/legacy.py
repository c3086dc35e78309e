"""HAMi's NVIDIA resource names and annotations (HAMi D/nvidia/device.go, MutateAdmission,
GenerateResourceRequests, CheckType), and the equivalent names of Volcano's vGPU plugin
(volcano.sh/vgpu-*).

Called by `controller.webhook` through `hami_dra.vendors.legacy.LegacyVendor`. Unlike in HAMi,
numbers that HAMi would drop or misread are refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from hami_dra.api import names
from hami_dra.cel import quote
from hami_dra.vendors.legacy import (
    MAX_CARDS,
    MAX_MIB,
    MIB,
    CardChoice,
    ContainerResources,
    Filters,
    InvalidLegacy,
    LegacyReading,
    LegacyRequest,
    LegacyVendor,
    checked_selector,
    comma_list,
    refuse_unknown,
)
from hami_dra.vendors.nvidia.preferences import (
    HAMI_CORE,
    MIG,
    MODE,
    NOUSE_TYPE,
    NOUSE_UUID,
    USE_TYPE,
    USE_UUID,
    VOLCANO_MODE,
    wanted_parts,
)
from hami_dra.vendors.nvidia.publish import EXTENDED_RESOURCE, IS_PARTITION, MIG_CLASS, SHARED_CLASS, WHOLE_CLASS
from hami_dra.vendors.nvidia.rules import DRIVER, PROFILE, TYPE_PREFIX
from hami_dra.vendors.preferences import InvalidPreference
from hami_dra.vendors.quotas import Quotas, cards, mebibytes, percent

GPU: Final = EXTENDED_RESOURCE
MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
PRIORITY: Final = "nvidia.com/priority"
VOLCANO_GPU: Final = "volcano.sh/vgpu-number"
VOLCANO_MEMORY: Final = "volcano.sh/vgpu-memory"
VOLCANO_MEMORY_PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
VOLCANO_CORES: Final = "volcano.sh/vgpu-cores"

_MIG_PREFIX: Final = "nvidia.com/mig-"
"""NVIDIA's own device plugin counts MIG instances by profile: `nvidia.com/mig-3g.20gb`."""

_HAMI_NAMES: Final = (GPU, MEMORY, MEMORY_PERCENT, CORES)
_VOLCANO_NAMES: Final = (VOLCANO_GPU, VOLCANO_MEMORY, VOLCANO_MEMORY_PERCENT, VOLCANO_CORES)

_ALL_CORES: Final = 100
_MAX_CORES: Final = 2**31 - 1  # HAMi reads an int32 and clamps it


class NvidiaLegacy(LegacyVendor):
    """Implements `hami_dra.vendors.legacy.LegacyVendor`."""

    name = "nvidia"
    driver = DRIVER
    resources: tuple[str, ...] = (*_HAMI_NAMES, PRIORITY, *_VOLCANO_NAMES)
    plugin_resources: tuple[str, ...] = (GPU, VOLCANO_GPU)
    quotas = Quotas(
        (
            cards(GPU),
            mebibytes(MEMORY),
            percent(CORES),
            cards(VOLCANO_GPU),
            mebibytes(VOLCANO_MEMORY),
            percent(VOLCANO_CORES),
        )
    )

    def read(self, resources: ContainerResources) -> LegacyReading:
        gpu, memory_name, percent_name, cores_name = _family(resources)
        count = resources.whole(gpu, "counts cards", MAX_CARDS)
        memory = resources.whole(memory_name, "counts MiB of each card", MAX_MIB, in_mib=True)
        percent = resources.whole(percent_name, "is a percentage of each card's memory", 100)
        cores = resources.whole(cores_name, "is a percentage of each card's cores", _MAX_CORES)
        priority = resources.whole(PRIORITY, "is 0 (high) or 1 (low)", 1)
        warnings = []
        if count is None:
            if memory is None and percent is None and cores is None:
                resources.needs(PRIORITY, GPU)
            count = 1
        if count == 0:
            return LegacyReading(None)
        if cores is not None and cores > _ALL_CORES:
            warnings.append(f"{resources.field(cores_name)} is {cores}, more than a card has; {_ALL_CORES} is used")
            cores = _ALL_CORES
        if memory and percent:
            warnings.append(f"{resources.field(percent_name)} is ignored, because {memory_name} is given as well")
        if cores is None:
            # HAMi's exclusive default (defaultExclusiveCoreIfNeeded): a card is not shared where no
            # limit of memory is named; 0 is named, and means all of it
            exclusive = memory is None if percent is None else percent == 100
            cores = _ALL_CORES if exclusive else 0
        capacity = {names.CAP_CORES: cores}
        if memory:
            capacity[names.CAP_MEMORY] = memory * MIB
        in_percent = None if memory or percent in (None, 0, 100) else percent
        return LegacyReading(LegacyRequest(count, capacity, in_percent, priority), tuple(warnings))

    def is_plain(self, request: CardChoice) -> bool:
        return request.is_only({names.CAP_CORES: _ALL_CORES})

    def device_class(self, request: CardChoice) -> str:
        whole = request.takes_all_memory and request.capacity.get(names.CAP_CORES, _ALL_CORES) == _ALL_CORES
        return WHOLE_CLASS if whole else SHARED_CLASS

    def filters(self, annotations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        lists = {name: comma_list(annotations, name) for name in _EXPRESSIONS}
        found = {name: items for name, items in lists.items() if items is not None}
        for name in (USE_TYPE, NOUSE_TYPE):
            if name in found:
                found[name] = tuple(sorted({_ascii_lower(item) for item in found[name]}))
        try:
            parts = wanted_parts({name: str(annotations[name]) for name in (MODE, VOLCANO_MODE) if name in annotations})
        except InvalidPreference as error:
            raise InvalidLegacy(f"annotation {error.annotation}: {error}") from error
        if parts is not None:
            found[MODE] = (MIG if parts else HAMI_CORE,)
        return found

    def selectors(self, filters: Filters) -> tuple[str, ...]:
        refuse_unknown(filters, (*_EXPRESSIONS, MODE))
        expressions = []
        for name, template in _EXPRESSIONS.items():
            if items := filters.get(name):
                expression = template.format(items="[" + ", ".join(quote(item) for item in items) + "]")
                expressions.append(checked_selector(name, items, expression))
        for mode in filters.get(MODE, ()):
            if mode not in _MODES:
                raise InvalidLegacy(f"{MODE}: {mode!r} is not one of {', '.join(_MODES)}")
            expressions.append(_MODES[mode])
        return tuple(expressions)

    def settled(self, request: LegacyRequest, annotations: Mapping[str, Any]) -> LegacyRequest:
        if self.filters(annotations).get(MODE) == (MIG,) and request.takes_all_memory:
            raise InvalidLegacy(
                f"it asks for all of the memory of a card in mode {MIG}, and a MIG instance never has all of the memory of its "
                f"card: add {MEMORY} or {MEMORY_PERCENT}, or remove the annotation {MODE}"
            )
        return request

    def instead_of(self, resource: str) -> str:
        if not resource.startswith(_MIG_PREFIX):
            return ""
        profile = resource.removeprefix(_MIG_PREFIX)
        return (
            f'a claim of class {MIG_CLASS} with the selector device.attributes["{DRIVER}"].{PROFILE} == "{profile}", or '
            f"{GPU} with {MEMORY} and the annotation {MODE}: {MIG}, which takes the smallest profile that holds the memory"
        )

    def env(self, request: LegacyRequest) -> dict[str, str]:
        return {} if request.priority is None else {"CUDA_TASK_PRIORITY": str(request.priority)}


def _family(resources: ContainerResources) -> tuple[str, str, str, str]:
    """Return the four names that a container uses. Raises InvalidLegacy."""
    ours = [name for name in _HAMI_NAMES if name in resources]
    volcanos = [name for name in _VOLCANO_NAMES if name in resources]
    if ours and volcanos:
        raise InvalidLegacy(
            f"{resources.field(ours[0])} and {resources.field(volcanos[0])} ask for the same cards by two names; use one"
        )
    return _VOLCANO_NAMES if volcanos else _HAMI_NAMES


def _ascii_lower(text: str) -> str:
    """Return the text in lower case, as CEL's lowerAscii: other letters stay."""
    return "".join(chr(ord(char) + 32) if "A" <= char <= "Z" else char for char in text)


def _attribute(name: str) -> str:
    domain, _, bare = name.partition("/")
    return f'device.attributes["{domain}"].{bare}'


_TYPE_MATCHES: Final = (
    f'{{items}}.exists(text, ("{TYPE_PREFIX}" + {_attribute(names.ATTR_PRODUCT)}.lowerAscii()).contains(text))'
)
_UUID_MATCHES: Final = f"{_attribute(names.ATTR_UUID)} in {{items}}"
_EXPRESSIONS: Final[Mapping[str, str]] = {
    USE_TYPE: _TYPE_MATCHES,
    NOUSE_TYPE: f"!{_TYPE_MATCHES}",
    USE_UUID: _UUID_MATCHES,
    NOUSE_UUID: f"!({_UUID_MATCHES})",
}
"""Annotation → CEL with `{items}` in place of the quoted list. All given ones apply together."""
_MODES: Final[Mapping[str, str]] = {MIG: IS_PARTITION, HAMI_CORE: f"!{IS_PARTITION}"}
"""The mode of a card: MIG partitions, or shared by HAMi-core."""
