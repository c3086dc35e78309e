"""The series of Ascend chips that have resource names in HAMi, and the templates by which each is cut.

Called by `publish`, `containers` and `legacy`. In: cards. Out: series and templates. Pure. Source:
the section `vnpus` of HAMi's scheduler configuration
(charts/hami/templates/scheduler/device-configmap.yaml). Its `commonWord` names the series,
`chipName` is what npu-smi prints, `memoryAllocatable` is offered of a card and `memoryCapacity` is
the most that a request may name.

A template takes a fixed part of the memory, the AI cores and the AI CPUs of a chip. Any vNPUs that
fit in all three may be on one chip at the same time; they have no place on it.

A 910C is a module of two chips, which npu-smi calls `Ascend910`. Each chip is a card here, as in
HAMi, and whole cards are taken by modules.
"""

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api.hardware import Card
from hami_dra.vendors.publishing import MIB

MAKER: Final = "Ascend"
"""Begins the product and the series: `Ascend910B4` for the chip `910B4`."""


class VnpuTemplate(NamedTuple):
    """One size of a vNPU."""

    name: str
    memory: int
    """MiB."""
    cores: int
    """AI cores."""
    cpus: int
    """AI CPUs; 0 where the chip does not divide them."""


class AscendSeries(Struct, frozen=True):
    """Chips with the same resource names and templates."""

    name: str
    """`Ascend910B4`: HAMi's common word."""
    chip: str
    """The chip as npu-smi prints it."""
    memory: int
    """MiB that are offered of a chip."""
    most: int
    """MiB that a request may name at most."""
    cores: int
    cpus: int
    ring: int
    """Chips that HCCS joins on the machines of this series; 0: none."""
    templates: tuple[VnpuTemplate, ...]
    """Smallest first."""
    older: tuple[str, ...] = ()
    """Names of the series in earlier versions of HAMi."""
    module: int = 1
    """Chips of one module, with consecutive numbers, which are taken together (HAMi's `superPod`)."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.older

    def template_for(self, memory: int) -> VnpuTemplate | None:
        """Return the smallest template that holds this many MiB; None: only a whole card does.

        >>> SERIES["Ascend910B4"].template_for(2000).name
        'vir05_1c_8g'
        >>> SERIES["Ascend910B4"].template_for(16385)
        """
        return next((template for template in self.templates if memory <= template.memory), None)

    def vnpus(self, template: VnpuTemplate) -> int:
        """Return how many vNPUs of a template an empty chip holds."""
        needs = ((self.memory, template.memory), (self.cores, template.cores), (self.cpus, template.cpus))
        return min(total // need for total, need in needs if need)


_8G: Final = 8_192
_16G: Final = 16_384
_32G: Final = 32_768
_64G: Final = 65_536
_OF_64G: Final = (VnpuTemplate("vir05_1c_16g", _16G, 5, 1), VnpuTemplate("vir10_3c_32g", _32G, 10, 3))
_OF_32G: Final = (VnpuTemplate("vir05_1c_8g", _8G, 5, 1), VnpuTemplate("vir10_3c_16g", _16G, 10, 3))
_OF_910A: Final = (
    VnpuTemplate("vir02", 2_184, 2, 0),
    VnpuTemplate("vir04", 4_369, 4, 0),
    VnpuTemplate("vir08", 8_738, 8, 0),
    VnpuTemplate("vir16", 17_476, 16, 0),
)
_OF_910B2: Final = (
    VnpuTemplate("vir03_1c_8g", _8G, 3, 1),
    VnpuTemplate("vir06_1c_16g", _16G, 6, 1),
    VnpuTemplate("vir12_3c_32g", _32G, 12, 3),
)
_OF_310P: Final = (
    VnpuTemplate("vir01", 3_072, 1, 1),
    VnpuTemplate("vir02", 6_144, 2, 2),
    VnpuTemplate("vir04", 12_288, 4, 4),
)
_ALL: Final = (
    AscendSeries("Ascend910A", "910A", _32G, _32G, 30, 0, 4, _OF_910A),
    AscendSeries("Ascend910B2", "910B2", _64G, _64G, 24, 6, 8, _OF_910B2),
    AscendSeries("Ascend910B3", "910B3", _64G, _64G, 20, 7, 8, _OF_64G, older=("Ascend910B",)),
    AscendSeries("Ascend910B4-1", "910B4-1", _64G, _64G, 20, 7, 8, _OF_64G),
    AscendSeries("Ascend910B4", "910B4", _32G, _32G, 20, 7, 8, _OF_32G),
    AscendSeries("Ascend310P", "310P3", 21_527, 24_576, 8, 7, 0, _OF_310P),
    AscendSeries("Ascend910C", "Ascend910", _64G, _64G, 20, 7, 16, _OF_64G, module=2),
)
SERIES: Final = {series.name: series for series in _ALL}


def product_of(chip: str) -> str:
    """Return the product of a chip as npu-smi prints it.

    >>> product_of("910B4"), product_of("Ascend910")
    ('Ascend910B4', 'Ascend910')
    """
    return chip if chip.startswith(MAKER) else MAKER + chip


_BY_PRODUCT: Final = {product_of(series.chip): series for series in _ALL}


def series_of(card: Card) -> AscendSeries | None:
    """Return the series of a card, with the card's memory where it has more than the series (a 300I
    Duo of 96 GB). None for a chip that HAMi has no configuration for: it is published whole,
    without a series.
    """
    series = series_of_product(card.product)
    return None if series is None else replace(series, memory=max(series.memory, card.memory // MIB))


def series_of_product(product: str) -> AscendSeries | None:
    return _BY_PRODUCT.get(product)
