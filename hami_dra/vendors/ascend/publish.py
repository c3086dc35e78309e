"""Ascend NPUs and the vNPUs that can be cut from them as published devices, and the DeviceClasses that select them.

Called through the vendor registry. In: card records. Out: JSON for ResourceSlices and
DeviceClasses. Pure. A whole NPU is for one claim, and so is a vNPU: the chip shares nothing else.
Each vNPU that a chip could ever have is a device; counters of the memory, the AI cores and the AI
CPUs of the chip determine which of them fit together. `linkGroup` is the ring that HCCS joins.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.containers import PartitionPlace, Site
from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.topology.islands import islands
from hami_dra.vendors.ascend.models import MAKER, SERIES, AscendSeries, VnpuTemplate, series_of
from hami_dra.vendors.ascend.records import AscendRecord
from hami_dra.vendors.ascend.rules import DRIVER, MODEL, TEMPLATE
from hami_dra.vendors.publishing import (
    CORES,
    MIB,
    OF_WHOLE_CARDS,
    Json,
    common_attributes,
    counted,
    device_class,
    driver_version,
    fault_taints,
    in_bytes,
    integer,
    of_driver,
    string,
)

WHOLE_CLASS: Final = "ascend-npu.hami.io"
VNPU_CLASS: Final = "ascend-vnpu.hami.io"
RESOURCE_DOMAIN: Final = "huawei.com"

PARENT: Final = "parentUUID"
"""The uuid of a vNPU's card."""
AI_CORES: Final = "aiCores"
AI_CPUS: Final = "aiCpus"

IS_VNPU: Final = f'has(device.attributes["{DRIVER}"].{TEMPLATE})'


class AscendPublishing:
    """Implements `hami_dra.vendors.publishing.PublishingVendor`."""

    name = "ascend"
    driver = DRIVER

    def devices(self, cards: Sequence[Card], settings: VendorSettings) -> list[Json]:  # noqa: ARG002 (nothing to choose)
        """Return the devices. vNPUs follow the cards, smallest first."""
        common = common_attributes(cards, rings(cards))
        ordered = sorted(cards, key=lambda card: card.index)
        whole = [_card(card, common[card.index]) for card in ordered]
        return whole + [vnpu for card in ordered for vnpu in _vnpus(card, common[card.index])]

    def counter_sets(self, cards: Sequence[Card]) -> list[Json]:
        ordered = sorted(cards, key=lambda card: card.index)
        found = ((card, series_of(card)) for card in ordered)
        return [{"name": card_name(card), "counters": _all(series)} for card, series in found if series is not None]

    def device_classes(self) -> list[Json]:
        """Return the classes of all NPUs, then those of each series, which have HAMi's names."""
        ours = of_driver(DRIVER)
        classes = [device_class(WHOLE_CLASS, f"{ours} && !{IS_VNPU}"), device_class(VNPU_CLASS, f"{ours} && {IS_VNPU}")]
        for series in SERIES.values():
            model = f'device.attributes["{DRIVER}"].?{MODEL}.orValue("") == "{series.name}"'
            whole, vnpus = f"{ours} && {model} && !{IS_VNPU}", f"{ours} && {model} && {IS_VNPU}"
            classes += [device_class(class_name(name), whole, resource_name(name)) for name in series.names]
            classes.append(device_class(class_name(series.name, vnpu=True), vnpus))
        return classes


def resource_name(series: str) -> str:
    """Return HAMi's resource name for whole cards of a series: `huawei.com/Ascend910B4`."""
    return f"{RESOURCE_DOMAIN}/{series}"


def class_name(series: str, *, vnpu: bool = False) -> str:
    """Return `ascend-910b4.hami.io`, or for its vNPUs `ascend-910b4-vnpu.hami.io`."""
    chip = series.removeprefix(MAKER).lower()
    return f"ascend-{chip}-vnpu.hami.io" if vnpu else f"ascend-{chip}.hami.io"


def card_name(card: Card) -> str:
    return f"npu-{card.name_number}"


def sites(cards: Sequence[Card]) -> dict[str, Site]:
    found = {card_name(card): Site(card=card) for card in cards}
    for card in cards:
        for _, template, number in possible_vnpus(card):
            place = PartitionPlace(card_uuid=card.uuid, profile=template.name, start=number, by_runtime=True)
            found[_vnpu_name(card, template, number)] = Site(card=card, partition=place)
    return found


def possible_vnpus(card: Card) -> Iterator[tuple[AscendSeries, VnpuTemplate, int]]:
    """Yield every vNPU that the card could ever have, with its number among those of its template."""
    series = series_of(card)
    if series is not None:
        for template in series.templates:
            for number in range(series.vnpus(template)):
                yield series, template, number


def rings(cards: Sequence[Card]) -> Mapping[int, int]:
    """Return card index → `linkGroup`.

    HCCS joins all cards of a ring. Where npu-smi does not report how the cards are joined, a ring
    is as long as on the machines of the series: 4 or 8 cards with consecutive numbers.
    """
    found = islands({card.index: card.links for card in cards})
    if found or any(isinstance(card, AscendRecord) and card.matrix_known for card in cards):
        return {index: number for number, group in enumerate(found, start=1) for index in group}
    lengths = {card.index: series.ring for card in cards if (series := series_of(card)) is not None and series.ring}
    return {index: index // ring + 1 for index, ring in lengths.items()}


def _card(card: Card, common: dict[str, Json]) -> Json:
    series = series_of(card)
    device: Json = {
        "name": card_name(card),
        "attributes": common
        | {"type": string("npu")}
        | _of_series(series, series.cores if series else 0, series.cpus if series else 0)
        | driver_version(card),
        "capacity": {
            names.CAP_MEMORY: {"value": in_bytes(card.memory // MIB * MIB)},
            names.CAP_CORES: {"value": str(CORES)},
        },
    }
    if series is not None:
        device["consumesCounters"] = [{"counterSet": card_name(card), "counters": _all(series)}]
    return device | fault_taints(card)


def _vnpus(card: Card, common: dict[str, Json]) -> list[Json]:
    attributes = {name: value for name, value in common.items() if name not in OF_WHOLE_CARDS} | driver_version(card)
    return [
        {
            "name": _vnpu_name(card, template, number),
            "attributes": attributes
            | {"type": string("vnpu"), PARENT: string(card.uuid), TEMPLATE: string(template.name)}
            | _of_series(series, template.cores, template.cpus),
            "capacity": {
                names.CAP_MEMORY: {"value": in_bytes(template.memory * MIB)},
                names.CAP_CORES: {"value": str(CORES * template.cores // series.cores)},
            },
            "consumesCounters": [
                {"counterSet": card_name(card), "counters": _counters(template.memory, template.cores, template.cpus)}
            ],
        }
        | fault_taints(card)
        for series, template, number in possible_vnpus(card)
    ]


def _vnpu_name(card: Card, template: VnpuTemplate, number: int) -> str:
    return f"{card_name(card)}-{template.name.replace('_', '-')}-{number}"


def _of_series(series: AscendSeries | None, cores: int, cpus: int) -> dict[str, Json]:
    if series is None:
        return {}
    cpus_known = {AI_CPUS: integer(cpus)} if series.cpus else {}
    return {MODEL: string(series.name), AI_CORES: integer(cores), **cpus_known}


def _all(series: AscendSeries) -> Json:
    return _counters(series.memory, series.cores, series.cpus)


def _counters(memory: int, cores: int, cpus: int) -> Json:
    """Return amounts of the chip. `memory`: MiB. AI CPUs only where the chip divides them."""
    found = {"memory": {"value": in_bytes(memory * MIB)}, "ai-cores": {"value": counted(cores)}}
    return found | ({"ai-cpus": {"value": counted(cpus)}} if cpus else {})
