"""MIG instances that containers have, under HAMi's names: collected at each scrape, from memory.

Used by `hardware_metrics`. Sources: `hami_mig_device_info` and `MigInfo` of HAMi's monitor
(cmd/vGPUmonitor/metrics.go), `hami_node_gpu_mig_instance_info` and `nodeGPUMigInstance` of its
scheduler (cmd/scheduler/metrics.go), which knows the instances from annotations; here the driver
does.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.metric_families import gauge
from hami_dra.driver.node.tenants import HeldPartition
from hami_dra.driver.prepare import Partition

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
    """Yield the metrics of the name sets that are wanted; all samples are 1."""
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
