"""Readings of cards and their granted shares, for Prometheus: collected at each scrape, from memory.

Registered by `metrics`. Names, labels and ranges are those of HAMi's monitor (`hami_host_gpu_*`,
`hami_vgpu_*`) and of HAMi-WebUI (`hami_device_*`) where the meaning is the same, so that dashboards
keep working: a `ratio` of HAMi's goes from 0 to 100, and WebUI's names carry no unit (degrees
Celsius, watts, percent). New names carry theirs. `source` is the source of the reading, `simulated`
where nothing was measured. A value that is not reported has no sample.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_dra.api import names
from hami_dra.api.hardware import Card, DrivenCard
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.metric_families import Column, counter, gauge, gauges
from hami_dra.driver.node.monitoring import Failure, Monitoring
from hami_dra.driver.node.tenants import CardTenant, HeldPartition
from hami_dra.driver.node.usage_metrics import LABELS, families, usages
from hami_dra.driver.prepare import Partition
from hami_dra.monitor.readings import Reading
from hami_dra.monitor.usage import ContainerUsage, GrantedContainer

_ZONE: Final = "vGPU"
_CONTAINER: Final = (
    "node", "namespace", "pod", "container", "vdevice_index", "device_uuid", "mig_uuid", "profile", "gpu_instance_id",
    "compute_instance_id",
)  # fmt: skip
_INSTANCE: Final = (
    "node", "device_uuid", "device_index", "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id",
    "placement_start", "placement_size", "zone",
)  # fmt: skip
_OLD_CONTAINER: Final = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "instanceid")
_OLD_INSTANCE: Final = ("nodeid", "deviceuuid", "deviceidx", "migname", "zone")


def partition_families(node: str, held: Iterable[HeldPartition], also: Collection[NameSet]) -> Iterator[Metric]:
    """Yield what containers and nodes have of MIG instances, in the name sets that are wanted: those of
    HAMi's monitor (cmd/vGPUmonitor/metrics.go) and scheduler (cmd/scheduler/metrics.go). All samples are 1.
    """
    known = list(held)
    of_containers = [(_container(each), each.partition) for each in known if each.container]
    instances = {each.partition.uuid: (str(each.index), each.partition) for each in known}.values()
    if NameSet.HAMI in also:
        yield _info(
            "hami_mig_device_info",
            "MIG instance that a container has.",
            _CONTAINER,
            ([node, *labels, *_instance(part)] for labels, part in of_containers),
        )
        yield _info(
            "hami_node_gpu_mig_instance_info",
            "MIG instance that exists for a claim, and its place on the card.",
            _INSTANCE,
            (
                [node, part.card, index, *_instance(part), str(part.start), str(part.size), _ZONE]
                for index, part in instances
            ),
        )
    if NameSet.HAMI_2_7 in also:
        yield _info(
            "MigInfo",
            "MIG instance that a container has.",
            _OLD_CONTAINER,
            ([*labels, str(part.id)] for labels, part in of_containers),
        )
        yield _info(
            "nodeGPUMigInstance",
            "MIG instance that exists for a claim.",
            _OLD_INSTANCE,
            ([node, part.card, index, f"{part.profile}-{part.id}", _ZONE] for index, part in instances),
        )


def _info(name: str, text: str, labels: Sequence[str], samples: Iterable[list[str]]) -> Metric:
    return gauge(name, text, labels, ((values, 1) for values in samples))


def _container(held: HeldPartition) -> list[str]:
    return [held.namespace, held.pod, held.container, str(held.number), held.partition.card]


def _instance(part: Partition) -> list[str]:
    return [part.uuid, part.profile, str(part.id), str(part.compute_id)]


_HOST: Final = ("node", "device_index", "device_uuid", "device_type", "source")
"""HAMi's labels, and an additional one at the end."""
_OLD_HOST: Final = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
"""HAMi's labels up to 2.7.0."""
_DEVICE: Final = ("node", "provider", "device_type", "device_uuid", "driver_version", "device_no", "source")
"""WebUI's labels, and an additional one at the end."""


_OF_HOST: Final[tuple[Column[Reading], ...]] = (
    Column(names.METRIC_MEMORY_USED, "Memory of the card in use.", lambda it: it.memory_used),
    Column(names.METRIC_MEMORY_TOTAL, "Memory of the card.", lambda it: it.memory_total),
    Column(names.METRIC_UTILIZATION, "Utilization of the card, 0 to 100.", lambda it: it.utilization),
    Column(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Utilization of the card's memory, 0 to 100.",
        lambda it: it.memory_utilization,
    ),
)
_OF_DEVICE: Final[tuple[Column[Reading], ...]] = (
    Column(names.METRIC_TEMPERATURE, "Temperature of the chip in Celsius.", lambda it: it.temperature),
    Column("hami_device_memory_temperature", "Temperature of the memory in Celsius.", lambda it: it.memory_temperature),
    Column(names.METRIC_POWER, "Power consumption of the card in watts.", lambda it: it.power),
    Column("hami_device_fan_speed_p", "Speed of the fan in percent of its maximum.", lambda it: it.fan),
)
_OF_HAMI_2_7: Final[tuple[Column[Reading], ...]] = (
    Column("HostGPUMemoryUsage", "Memory of the card in use, in bytes.", lambda it: it.memory_used),
    Column("HostCoreUtilization", "Utilization of the card, 0 to 100.", lambda it: it.utilization),
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
        cards = [(each, card) for each in watched for card in each.cards]
        read = [(each, card, each.readings[card.uuid]) for each, card in cards if card.uuid in each.readings]
        yield from gauges(_OF_HOST, _HOST, [(self._host(each, card), found) for each, card, found in read])
        yield from gauges(_OF_DEVICE, _DEVICE, [(self._device(each, card), found) for each, card, found in read])
        if NameSet.HAMI_2_7 in self._also:
            old = [(self._host(each, card)[:-1], found) for each, card, found in read]
            yield from gauges(_OF_HAMI_2_7, _OLD_HOST, old)
        yield gauge(
            "hami_device_hardware_health",
            "1 while the card has no fault that counts, else 0.",
            _DEVICE,
            ((self._device(each, card), 0 if card.uuid in each.faulty else 1) for each, card in cards),
        )
        yield counter(
            "hami_device_ecc_errors",
            "Errors in the card's memory since its driver was loaded: corrected, uncorrected.",
            (*_DEVICE, "error"),
            (
                ([*self._device(each, card), error], count)
                for each, card, found in read
                for error, count in (("corrected", found.ecc_corrected), ("uncorrected", found.ecc_uncorrected))
            ),
        )
        held = [
            ([self._node, it.namespace, it.pod, it.container, str(it.number), it.card], it)
            for each in watched
            for it in each.tenants
        ]
        yield from gauges(_OF_TENANTS, LABELS, held)
        used = [found for each in watched if each.usage for found in usages(each.tenants, each.usage.readings)]
        yield from families(self._node, used, self._also)
        yield from partition_families(self._node, (part for each in watched for part in each.partitions), self._also)
        yield from _of_monitoring(watched)

    def _host(self, watched: MonitoredVendor, card: Card) -> list[str]:
        return [self._node, str(card.index), card.uuid, card.product, watched.source]

    def _device(self, watched: MonitoredVendor, card: Card) -> list[str]:
        version = card.driver_version if isinstance(card, DrivenCard) else ""
        return [self._node, watched.vendor, card.product, card.uuid, version, str(card.index), watched.source]


_OF_TENANTS: Final[tuple[Column[CardTenant], ...]] = (
    Column(names.METRIC_CONTAINER_LIMIT, "Memory of the card granted to the container.", lambda it: it.memory),
    Column(
        "hami_vgpu_core_limit_ratio",
        "Share of the card's cores granted to the container, 0 to 100; no sample if it is not limited.",
        lambda it: it.cores or None,
    ),
)


def _of_monitoring(watched: Iterable[MonitoredVendor]) -> Iterator[Metric]:
    """Yield the metrics of monitoring itself."""
    monitored = [([each.driver], each.monitoring) for each in watched if each.monitoring is not None]
    yield counter(
        "hami_dra_driver_monitor_looks",
        "Samplings of what the cards report.",
        ("driver",),
        ((driver, monitoring.looks) for driver, monitoring in monitored),
    )
    yield counter(
        "hami_dra_driver_monitor_failures",
        f"Samplings that failed, by kind: {', '.join(Failure)}.",
        ("driver", "kind"),
        (([*driver, kind.value], monitoring.failures[kind]) for driver, monitoring in monitored for kind in Failure),
    )
    yield gauge(
        "hami_dra_driver_monitor_problems",
        "Values that the last sampling could not read.",
        ("driver",),
        ((driver, len(monitoring.problems)) for driver, monitoring in monitored),
    )
    yield gauge(
        "hami_dra_driver_usage_problems",
        "Containers whose use of their cards could not be read the last time.",
        ("driver",),
        (([each.driver], len(each.usage.problems)) for each in watched if each.usage is not None),
    )
