"""One series per card and gauge: limit, allocated, shares, health. Names and labels of HAMi-DRA.

Those of HAMi are optional. Created by `scrape` for the lifetime of the controller. In: a
`CardTable` that is kept. Out: text. A card's labels change only when it is published again, so they
are kept as text and updated; amounts are copied at once and written out afterwards.

Ratios: HAMi-DRA's go from 0 to 1, HAMi's from 0 to 100. A card is 1 (or 100) whatever unit its
driver counts cores in. A role that the driver does not publish has no sample.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.incremental import LogReader
from controller.inventory import UNNUMBERED, Device
from controller.reconcile.observability.collectors.lines import BLOCK, Gauge, blocks, labels
from controller.views.overview import CardTable, troubles, vendor_name
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Floats, Ints, Positions
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.vendors.registry import vendor_of

PERCENT: Final = 100
_MIB: Final = 1 << 20
_ZONE: Final = ("zone", "zone")
"""On all of HAMi's series: `zone="vGPU"`."""

Numbers = Ints | Floats
Labels = tuple[tuple[str, str], ...]
"""(name of the label, source of its value)"""

_DRA: Final[Labels] = (
    ("node", "node"),
    ("device_uuid", "uuid"),
    ("device_index", "index"),
    ("device_name", "name"),
    ("device_type", "product"),
    ("vendor", "vendor"),
)
_HAMI: Final[Labels] = (
    ("node", "node"), ("device_uuid", "uuid"), ("device_index", "index"), ("device_type", "product"), _ZONE,
)  # fmt: skip
_HAMI_CORES: Final[Labels] = (*_HAMI, ("device_cores", "cores"))
_HAMI_SHORT: Final[Labels] = (*_HAMI[:3], _ZONE)
_HAMI_OVERVIEW: Final[Labels] = (*_HAMI_CORES, ("device_memory_limit", "memory"))
_OLD: Final[Labels] = (
    ("nodeid", "node"), ("deviceuuid", "uuid"), ("deviceidx", "index"), ("devicetype", "product"), _ZONE,
)  # fmt: skip
_OLD_CORES: Final[Labels] = (*_OLD, ("devicecores", "cores"))
_OLD_SHORT: Final[Labels] = (*_OLD[:3], _ZONE)
_OLD_OVERVIEW: Final[Labels] = (*_OLD_CORES, ("devicememorylimit", "memory"))


class Amounts:
    """Amounts of the cards at one moment. Arrays have shape (cards,)."""

    def __init__(self, table: CardTable, healthy: Bools) -> None:
        devices, rows = table.inventory.devices, table.cards
        self.rows = rows
        self.memory_limit = devices.memory_total[rows]
        self.memory = table.memory_used[rows]
        self.shares_limit = devices.slots_total[rows]
        self.shares = table.slots_used[rows]
        limit = devices.cores_total[rows]
        unit = _core_units(table, rows, limit)
        self.has_cores = limit > 0
        self.has_memory = self.memory_limit > 0
        self.percent_limit = limit * PERCENT // unit
        self.percent = table.cores_used[rows] * PERCENT // unit
        self.health = healthy[devices.taint_kind[rows]].astype(np.int64)


class _CardGauge(Struct, frozen=True):
    gauge: Gauge
    labels: Labels
    values: Callable[[Amounts], Numbers]
    known: Callable[[Amounts], Bools] | None = None


def _memory(it: Amounts) -> Bools:
    return it.has_memory


def _cores(it: Amounts) -> Bools:
    return it.has_cores


def _memory_share(it: Amounts) -> Numbers:
    return it.memory / np.maximum(it.memory_limit, 1)


_OURS: Final = (
    _CardGauge(
        Gauge("hami_dra_gpu_memory_limit_bytes", "Allocatable memory of the card."),
        _DRA, lambda it: it.memory_limit, _memory,
    ),
    _CardGauge(
        Gauge("hami_dra_gpu_memory_allocated_bytes", "Allocated memory of the card, regardless of the allocator."),
        _DRA, lambda it: it.memory, _memory,
    ),
    _CardGauge(
        Gauge("hami_dra_gpu_core_limit_ratio", "Allocatable cores of the card; 1 is a whole card."),
        _DRA, lambda it: it.percent_limit / PERCENT, _cores,
    ),
    _CardGauge(
        Gauge("hami_dra_gpu_core_allocated_ratio", "Allocated cores of the card; 1 is a whole card."),
        _DRA, lambda it: it.percent / PERCENT, _cores,
    ),
    _CardGauge(Gauge("hami_dra_gpu_shares_limit", "Largest number of allocations that may share the card."), _DRA, lambda it: it.shares_limit),
    _CardGauge(Gauge("hami_dra_gpu_shares_allocated", "Number of allocations that share the card."), _DRA, lambda it: it.shares),
    _CardGauge(
        Gauge("hami_dra_gpu_health", "1 if the card has no taint other than an operator's cordon, else 0."),
        _DRA, lambda it: it.health,
    ),
)  # fmt: skip


def _of_hami(
    names_of: Sequence[str], plain: Labels, cores: Labels, short: Labels, overview: Labels
) -> tuple[_CardGauge, ...]:
    """Return HAMi's gauges, which are equal under both generations of names."""
    texts = (
        (plain, "Device memory limit for a certain GPU", lambda it: it.memory_limit, _memory),
        (plain, "Device core limit for a certain GPU, 0 to 100", lambda it: it.percent_limit, _cores),
        (cores, "Device memory allocated for a certain GPU", lambda it: it.memory, _memory),
        (plain, "Number of containers sharing this GPU", lambda it: it.shares, None),
        (plain, "Device core allocated for a certain GPU, 0 to 100", lambda it: it.percent, _cores),
        (overview, "GPU overview on a certain node: its memory allocated", lambda it: it.memory, _memory),
        (short, "GPU memory allocated on a certain GPU, 0 to 1", _memory_share, _memory),
    )
    return tuple(
        _CardGauge(Gauge(name, text), labelled, values, known)
        for name, (labelled, text, values, known) in zip(names_of, texts, strict=True)
    )


_SETS: Final = {
    NameSet.HAMI: _of_hami(
        (
            "hami_gpu_memory_limit_bytes", "hami_gpu_core_limit_ratio", "hami_gpu_memory_allocated_bytes",
            "hami_gpu_shared_count", "hami_gpu_core_allocated_ratio", "hami_node_gpu_overview",
            "hami_node_gpu_memory_allocated_ratio",
        ),
        _HAMI, _HAMI_CORES, _HAMI_SHORT, _HAMI_OVERVIEW,
    ),
    NameSet.HAMI_2_7: _of_hami(
        (
            "GPUDeviceMemoryLimit", "GPUDeviceCoreLimit", "GPUDeviceMemoryAllocated", "GPUDeviceSharedNum",
            "GPUDeviceCoreAllocated", "nodeGPUOverview", "nodeGPUMemoryPercentage",
        ),
        _OLD, _OLD_CORES, _OLD_SHORT, _OLD_OVERVIEW,
    ),
}  # fmt: skip


class CardGauges:
    def __init__(self, table: CardTable, also: frozenset[NameSet] = frozenset()) -> None:
        self._table = table
        self._gauges = (*_OURS, *(gauge for each in NameSet if each in also for gauge in _SETS[each]))
        self._labels: dict[Labels, list[str]] = {gauge.labels: [] for gauge in self._gauges}
        """By row."""
        self._structure = LogReader(table.inventory.devices.structure)
        self._healthy: list[bool] = []
        """By taint set."""

    def blocks(self) -> Iterator[str]:
        """Yield text in pieces; empty pieces only let other tasks run. Changes after the start are not included."""
        yield from self._follow()
        self._table.refresh()
        amounts = Amounts(self._table, self._health())
        kept = {style: [by_row[row] for row in amounts.rows.tolist()] for style, by_row in self._labels.items()}
        distinct = {style: _first_of_each(labelled) for style, labelled in kept.items()}
        for gauge in self._gauges:
            labelled: Sequence[str] = kept[gauge.labels]
            values = gauge.values(amounts)
            said = distinct[gauge.labels]
            if gauge.known is not None:
                said = said & gauge.known(amounts)
            if not said.all():
                labelled = [labelled[place] for place in np.flatnonzero(said).tolist()]
                values = values[said]
            yield from blocks(gauge.gauge, labelled, values.tolist())

    def _follow(self) -> Iterator[str]:
        """Update the labels until nothing is left, including devices published between two pieces."""
        devices = self._table.inventory.devices
        while not self._structure.is_current:
            changed = self._structure.take()
            rows = np.arange(devices.size) if changed is None else changed
            for by_row in self._labels.values():
                by_row.extend([""] * (devices.size - len(by_row)))
            for start in range(0, len(rows), BLOCK // 8):
                for row in rows[start : start + BLOCK // 8].tolist():
                    self._name(row)
                yield ""

    def _name(self, row: int) -> None:
        device = self._table.inventory.devices.devices[row]
        if device is not None:
            facts = card_facts(self._table, row, device)
            ordinary = vendor_of(device.id.driver) is not None and device.id.pool == facts["node"]
            more = [] if ordinary else [("pool", device.id.pool)]
            for style, by_row in self._labels.items():
                found = [(name, facts[key]) for name, key in style]
                by_row[row] = labels(found + more if style is _DRA else found)

    def _health(self) -> Bools:
        known = self._table.inventory.devices.taint_samples
        for sample in known[len(self._healthy) :]:
            self._healthy.append(sample is None or not troubles(sample)[1])
        return np.array(self._healthy, dtype=np.bool_)


def _first_of_each(labelled: Sequence[str]) -> Bools:
    """Return the first card of each set of labels: Prometheus rejects a scrape with a series twice."""
    said = np.ones(len(labelled), dtype=np.bool_)
    if len(set(labelled)) < len(labelled):
        seen: set[str] = set()
        for place, text in enumerate(labelled):
            said[place] = text not in seen
            seen.add(text)
    return said


def core_unit(device: Device, total: int) -> int:
    """Return the number of the device's core units that make 1 (or 100 percent)."""
    return PERCENT if device.profile.cores == names.CAP_CORES else max(total, 1)


def _core_units(table: CardTable, rows: Positions, limit: Ints) -> Ints:
    """Return core units per card, shape (cards,): one value for the driver, or the card's own total."""
    by_driver = np.ones(max(len(table.drivers), 1), dtype=np.bool_)
    for number in set(np.unique(table.driver[rows]).tolist()):
        by_driver[number] = table.inventory.profiles.of(table.drivers[number]).cores in {None, names.CAP_CORES}
    units: Ints = np.where(by_driver[table.driver[rows]], PERCENT, np.maximum(limit, 1))
    return units


def card_facts(table: CardTable, row: int, device: Device) -> dict[str, str]:
    devices, profile = table.inventory.devices, device.profile
    return {
        "node": table.node_name(row),
        "uuid": device.string_attribute(profile.uuid),
        "index": "" if device.index == UNNUMBERED else str(device.index),
        "name": device.id.device,
        "product": device.string_attribute(profile.product),
        "vendor": vendor_name(device.id.driver),
        "cores": str(int(devices.cores_total[row])),
        "memory": str(int(devices.memory_total[row]) // _MIB),
        "zone": "vGPU",
    }
