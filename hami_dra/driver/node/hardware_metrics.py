"""Readings of cards and their granted shares, for Prometheus: collected at each scrape, from
memory.

Registered by `metrics`. Names, labels and ranges are those of HAMi's monitor (`hami_host_gpu_*`,
`hami_vgpu_*`) and of HAMi-WebUI (`hami_device_*`) where the meaning is the same, so that dashboards
keep working: a `ratio` of HAMi's goes from 0 to 100, and WebUI's names carry no unit (degrees
Celsius, watts, percent). New names carry theirs. `source` is the source of the reading, `simulated`
where nothing was measured. A value that is not reported has no sample.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_dra.api import names
from hami_dra.api.hardware import Card, DrivenCard
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.monitoring import Failure, Monitoring
from hami_dra.driver.node.partition_metrics import partition_families
from hami_dra.driver.node.tenants import CardTenant, HeldPartition
from hami_dra.driver.node.usage_metrics import LABELS, families, usages
from hami_dra.monitor.readings import Reading
from hami_dra.monitor.usage import ContainerUsage, GrantedContainer

_HOST: Final = ("node", "device_index", "device_uuid", "device_type", "source")
"""HAMi's labels, and an additional one at the end."""
_OLD_HOST: Final = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
"""HAMi's labels up to 2.7.0."""
_DEVICE: Final = ("node", "provider", "device_type", "device_uuid", "driver_version", "device_no", "source")
"""WebUI's labels, and an additional one at the end."""


class _Gauge(Struct, frozen=True):
    name: str
    text: str
    labels: tuple[str, ...]
    value: Callable[[Reading], float | None]


_GAUGES: Final = (
    _Gauge(names.METRIC_MEMORY_USED, "Memory of the card in use.", _HOST, lambda it: it.memory_used),
    _Gauge(names.METRIC_MEMORY_TOTAL, "Memory of the card.", _HOST, lambda it: it.memory_total),
    _Gauge(names.METRIC_UTILIZATION, "Utilization of the card, 0 to 100.", _HOST, lambda it: it.utilization),
    _Gauge(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Utilization of the card's memory, 0 to 100.",
        _HOST,
        lambda it: it.memory_utilization,
    ),
    _Gauge(names.METRIC_TEMPERATURE, "Temperature of the chip in Celsius.", _DEVICE, lambda it: it.temperature),
    _Gauge(
        "hami_device_memory_temperature",
        "Temperature of the memory in Celsius.",
        _DEVICE,
        lambda it: it.memory_temperature,
    ),
    _Gauge(names.METRIC_POWER, "Power consumption of the card in watts.", _DEVICE, lambda it: it.power),
    _Gauge("hami_device_fan_speed_p", "Speed of the fan in percent of its maximum.", _DEVICE, lambda it: it.fan),
)

_GAUGES_OF_HAMI_2_7: Final = (
    _Gauge("HostGPUMemoryUsage", "Memory of the card in use, in bytes.", _OLD_HOST, lambda it: it.memory_used),
    _Gauge("HostCoreUtilization", "Utilization of the card, 0 to 100.", _OLD_HOST, lambda it: it.utilization),
)


class MonitoredVendor(Struct, frozen=True):
    """The cards of one driver, now."""

    driver: str
    vendor: str
    cards: Sequence[Card]
    faulty: frozenset[str]
    """Uuids of cards with faults."""
    tenants: Sequence[CardTenant]
    monitoring: Monitoring[Card, Reading] | None
    """None: their readings are not monitored."""
    usage: Monitoring[GrantedContainer, ContainerUsage] | None = None
    """What containers use; None: nothing tells."""
    partitions: Sequence[HeldPartition] = ()

    @property
    def source(self) -> str:
        return self.monitoring.source if self.monitoring else ""

    @property
    def readings(self) -> Mapping[str, Reading]:
        return self.monitoring.readings if self.monitoring else {}


class HardwareCollector(Collector):
    """Collect the samples. `watched` is called at each scrape and must not block."""

    def __init__(
        self, node: str, watched: Callable[[], Iterable[MonitoredVendor]], also: Collection[NameSet] = ()
    ) -> None:
        """`also`: names of HAMi's to export what containers use under, and their MIG instances."""
        self._node = node
        self._watched = watched
        self._also = also

    def collect(self) -> Iterator[Metric]:
        watched = list(self._watched())
        for gauge in _GAUGES:
            yield self._gauge(gauge, watched)
        if NameSet.HAMI_2_7 in self._also:
            for gauge in _GAUGES_OF_HAMI_2_7:
                yield self._gauge(gauge, watched)
        yield self._health(watched)
        yield self._errors(watched)
        yield from self._limits(watched)
        used = [found for each in watched if each.usage for found in usages(each.tenants, each.usage.readings)]
        yield from families(self._node, used, self._also)
        yield from partition_families(self._node, (part for each in watched for part in each.partitions), self._also)
        yield from _looks(watched)

    def _gauge(self, gauge: _Gauge, watched: Iterable[MonitoredVendor]) -> Metric:
        labelled = {_HOST: self._host, _DEVICE: self._device, _OLD_HOST: self._old_host}[gauge.labels]
        family = GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)
        for each in watched:
            for card in each.cards:
                found = gauge.value(each.readings[card.uuid]) if card.uuid in each.readings else None
                if found is not None:
                    family.add_metric(labelled(each, card), found)
        return family

    def _health(self, watched: Iterable[MonitoredVendor]) -> Metric:
        family = GaugeMetricFamily(
            "hami_device_hardware_health", "1 while the card has no fault that counts, else 0.", labels=_DEVICE
        )
        for each in watched:
            for card in each.cards:
                family.add_metric(self._device(each, card), 0 if card.uuid in each.faulty else 1)
        return family

    def _errors(self, watched: Iterable[MonitoredVendor]) -> Metric:
        family = CounterMetricFamily(
            "hami_device_ecc_errors",
            "Errors in the card's memory since its driver was loaded: corrected, uncorrected.",
            labels=[*_DEVICE, "error"],
        )
        for each in watched:
            for card in each.cards:
                reading = each.readings.get(card.uuid, Reading())
                for error, count in (("corrected", reading.ecc_corrected), ("uncorrected", reading.ecc_uncorrected)):
                    if count is not None:
                        family.add_metric([*self._device(each, card), error], count)
        return family

    def _limits(self, watched: Iterable[MonitoredVendor]) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            names.METRIC_CONTAINER_LIMIT, "Memory of the card granted to the container.", labels=LABELS
        )
        cores = GaugeMetricFamily(
            "hami_vgpu_core_limit_ratio",
            "Share of the card's cores granted to the container, 0 to 100; no sample if it is not limited.",
            labels=LABELS,
        )
        for each in watched:
            for it in each.tenants:
                labels = [self._node, it.namespace, it.pod, it.container, str(it.number), it.card]
                memory.add_metric(labels, it.memory)
                if it.cores:
                    cores.add_metric(labels, it.cores)
        yield memory
        yield cores

    def _host(self, watched: MonitoredVendor, card: Card) -> list[str]:
        return [self._node, str(card.index), card.uuid, card.product, watched.source]

    def _old_host(self, _watched: MonitoredVendor, card: Card) -> list[str]:
        return [self._node, str(card.index), card.uuid, card.product]

    def _device(self, watched: MonitoredVendor, card: Card) -> list[str]:
        version = card.driver_version if isinstance(card, DrivenCard) else ""
        return [self._node, watched.vendor, card.product, card.uuid, version, str(card.index), watched.source]


def _looks(watched: Iterable[MonitoredVendor]) -> Iterator[Metric]:
    """Yield the metrics of monitoring itself."""
    looks = CounterMetricFamily(
        "hami_dra_driver_monitor_looks", "Samplings of what the cards report.", labels=["driver"]
    )
    failures = CounterMetricFamily(
        "hami_dra_driver_monitor_failures",
        f"Samplings that failed, by kind: {', '.join(Failure)}.",
        labels=["driver", "kind"],
    )
    problems = GaugeMetricFamily(
        "hami_dra_driver_monitor_problems", "Values that the last sampling could not read.", labels=["driver"]
    )
    unread = GaugeMetricFamily(
        "hami_dra_driver_usage_problems",
        "Containers whose use of their cards could not be read the last time.",
        labels=["driver"],
    )
    for each in watched:
        if each.usage is not None:
            unread.add_metric([each.driver], len(each.usage.problems))
        if each.monitoring is not None:
            looks.add_metric([each.driver], each.monitoring.looks)
            problems.add_metric([each.driver], len(each.monitoring.problems))
            for kind in Failure:
                failures.add_metric([each.driver, kind.value], each.monitoring.failures[kind])
    yield looks
    yield failures
    yield problems
    yield unread
