"""Figures by driver and by quota: packing, allocations, and usage of each quota.

Registered by `scrape`. In: a `CardTable` that is kept, the inventory's quotas. Few samples: labels
are drivers, vendors, sizes and names of quotas.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.inventory import Inventory, QuotaLine
from controller.views.overview import CardTable, Packing, packing
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.vendors.quotas import PREFIX

_DRIVER: Final = ("driver", "vendor")

_AMOUNTS: Final[tuple[tuple[str, str, Callable[[Packing], float]], ...]] = (
    ("memory_limit_bytes", "Allocatable memory of all cards.", lambda it: it.memory_total),
    ("memory_allocated_bytes", "Allocated memory of all cards.", lambda it: it.memory_used),
    ("cores_limit", "Cores of all cards, as the driver counts them (100 a card).", lambda it: it.cores_total),
    ("cores_allocated", "Allocated cores of all cards, as the driver counts them.", lambda it: it.cores_used),
    (
        "shares_limit",
        "Largest number of allocations that may share the cards, summed over all cards.",
        lambda it: it.shares_total,
    ),
    (
        "shares_allocated",
        "Number of allocations that share the cards, summed over all cards.",
        lambda it: it.shares_used,
    ),
    ("free_capacity", "Free capacity of usable cards, in cards.", lambda it: it.free_capacity),
    (
        "fragmentation_ratio",
        "Share of the free capacity that is on partly used cards: 0 to 1.",
        lambda it: it.fragmentation,
    ),
)
_STATES: Final[tuple[tuple[str, Callable[[Packing], int]], ...]] = (
    ("free", lambda it: it.free_cards),
    ("partly_used", lambda it: it.partly_used_cards),
    ("full", lambda it: it.full_cards),
    ("unusable", lambda it: it.cards - it.usable_cards),
)


class PackingFigures(Collector):
    def __init__(self, table: CardTable) -> None:
        self._table = table

    def collect(self) -> Iterator[GaugeMetricFamily]:
        found = packing(self._table)
        cards = _gauge("hami_dra_cards", f"Cards, by state: {', '.join(name for name, _ in _STATES)}.", "state")
        nodes = _gauge(
            "hami_dra_nodes", "Nodes with cards, by state: empty (all of its cards are free), used.", "state"
        )
        islands = _gauge(
            "hami_dra_free_islands",
            "Number of groups of linked free cards that could be allocated, by group size.",
            "size",
        )
        for each in found:
            driver = [each.driver, each.vendor]
            for state, count in _STATES:
                cards.add_metric([*driver, state], count(each))
            nodes.add_metric([*driver, "empty"], each.empty_nodes)
            nodes.add_metric([*driver, "used"], each.nodes - each.empty_nodes)
            for size, groups in each.free_islands.items():
                islands.add_metric([*driver, str(size)], groups)
        yield from (cards, nodes, islands)
        for name, text, value in _AMOUNTS:
            family = _gauge(f"hami_dra_{name}", text)
            for each in found:
                family.add_metric([each.driver, each.vendor], value(each))
            yield family


class VanishedFigures(Collector):
    """Deleted claims whose devices are still held, by driver; 0 for each driver that publishes cards."""

    def __init__(self, table: CardTable) -> None:
        self._table = table

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "hami_dra_held_by_vanished_claims",
            "Devices held by deleted claims: they count until the claims' pods have ended.",
            labels=["driver"],
        )
        held: Counter[str] = Counter()
        for claim in self._table.inventory.vanished.all():
            held.update(device.driver for device in claim.devices)
        self._table.refresh()
        drivers = {self._table.drivers[number] for number in self._table.ordered_drivers()}
        for driver in sorted(drivers | held.keys()):
            family.add_metric([driver], held[driver])
        yield family


class QuotaFigures(Collector):
    """HAMi's quota metrics; `resourcequota` distinguishes quotas of a namespace with the same key."""

    def __init__(self, inventory: Inventory, also: frozenset[NameSet] = frozenset()) -> None:
        self._inventory = inventory
        self._old = NameSet.HAMI_2_7 in also

    def collect(self) -> Iterator[GaugeMetricFamily]:
        found = self._inventory.quotas.lines()
        labels = ["namespace", "quota_name", "resourcequota", "unit"]
        used = GaugeMetricFamily(
            "hami_resource_quota_used", "Amount used of a key of a ResourceQuota for cards.", labels=labels
        )
        limit = GaugeMetricFamily(
            "hami_resource_quota_limit", "Limit of a key of a ResourceQuota for cards.", labels=labels
        )
        for each in found:
            values = [each.namespace, each.resource.removeprefix(PREFIX), each.quota, each.unit]
            used.add_metric(values, each.used)
            limit.add_metric(values, each.hard)
        yield from (used, limit)
        if self._old:
            yield _old_quotas(found)


def _old_quotas(found: list[QuotaLine]) -> GaugeMetricFamily:
    """Return the metric of HAMi 2.7.0, which has one limit per resource of a namespace: the lowest."""
    family = GaugeMetricFamily(
        "QuotaUsed", "resourcequota usage for a certain device", labels=["quotanamespace", "quotaName", "limit", "zone"]
    )
    least: dict[tuple[str, str], QuotaLine] = {}
    for each in found:
        key = (each.namespace, each.resource.removeprefix(PREFIX))
        least[key] = min(least.get(key, each), each, key=lambda line: line.hard)
    for (namespace, resource), each in least.items():
        family.add_metric([namespace, resource, str(each.hard), "vGPU"], each.used)
    return family


def _gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[*_DRIVER, *more])
