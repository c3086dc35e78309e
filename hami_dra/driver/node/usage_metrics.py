"""What containers use of the cards that they share, for Prometheus: collected at each scrape, from
memory.

Used by `hardware_metrics`. Our names carry their units, and ratios go from 0 to 1; HAMi's monitor's
names (`NameSet`) have its ranges and labels. A value that is not reported has no sample.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, Metric

from hami_dra.api import names
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.tenants import CardTenant
from hami_dra.monitor.usage import CardUsage, ContainerUsage

LABELS: Final = ("node", "namespace", "pod", "container", "vdevice_index", "device_uuid")
"""HAMi's labels of a container, and the node."""
_OLD_LABELS: Final = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_PARTS: Final = ("context", "module", "data", "offset")
"""Labels in which HAMi up to 2.7 has amounts of memory."""
_WHOLE: Final = 100


class TenantUsage(Struct, frozen=True):
    """What one container uses of one card."""

    tenant: CardTenant
    usage: CardUsage
    last_kernel: int | None


def usages(tenants: Iterable[CardTenant], found: Mapping[str, ContainerUsage]) -> Iterator[TenantUsage]:
    """Yield what is known of each tenant's use. `found`: by view."""
    for tenant in tenants:
        container = found.get(tenant.view)
        usage = container.cards.get(tenant.card) if container is not None else None
        if container is not None and usage is not None:
            yield TenantUsage(tenant, usage, container.last_kernel)


def families(
    node: str, used: Collection[TenantUsage], also: Collection[NameSet] = (), now: Callable[[], float] = time.time
) -> Iterator[Metric]:
    """Yield our metrics, and those of HAMi that are wanted `also`. `now`: Unix time in seconds."""
    yield from _ours(node, used)
    if NameSet.HAMI in also:
        yield from _as_hami(node, used, now())
    if NameSet.HAMI_2_7 in also:
        yield from _as_hami_2_7(used, now())


def _ours(node: str, used: Iterable[TenantUsage]) -> Iterator[Metric]:
    memory = _gauge(names.METRIC_CONTAINER_MEMORY, "Memory of the card that the container uses.", LABELS)
    part = _gauge(
        "hami_dra_container_memory_part_bytes",
        "Parts of it, by kind: context, module (code), buffer (data).",
        (*LABELS, "part"),
    )
    busy = _gauge(
        names.METRIC_CONTAINER_UTILIZATION, "Share of the card's cores that the container uses, 0 to 1.", LABELS
    )
    last = _gauge(
        "hami_dra_container_last_kernel_timestamp_seconds",
        "When the container last launched a kernel, as a Unix timestamp.",
        LABELS,
    )
    for each in used:
        labels = [node, *_labels(each.tenant)]
        _add(memory, labels, each.usage.memory_used)
        _add(part, [*labels, "context"], each.usage.memory_context)
        _add(part, [*labels, "module"], each.usage.memory_module)
        _add(part, [*labels, "buffer"], each.usage.memory_buffer)
        _add(busy, labels, None if each.usage.utilization is None else each.usage.utilization / _WHOLE)
        _add(last, labels, each.last_kernel)
    yield from (memory, part, busy, last)


def _as_hami(node: str, used: Iterable[TenantUsage], now: float) -> Iterator[Metric]:
    """Yield the names of HAMi's monitor since it has names with units (cmd/vGPUmonitor/metrics.go)."""
    vgpu = _gauge("hami_vgpu_memory_used_bytes", "Memory of the card that the container uses.", LABELS)
    memory = _gauge("hami_container_device_memory_bytes", "Memory of the card that the container uses.", LABELS)
    busy = _gauge("hami_container_device_utilization_ratio", "Utilization by the container, 0 to 100.", LABELS)
    last = _gauge("hami_container_last_kernel_elapsed_seconds", "Since the container's last kernel.", LABELS)
    context = _gauge("hami_vgpu_memory_context_bytes", "Memory of the container's contexts.", LABELS)
    module = _gauge("hami_vgpu_memory_module_bytes", "Memory of the container's modules.", LABELS)
    buffer = _gauge("hami_vgpu_memory_buffer_bytes", "Memory of the container's buffers.", LABELS)
    for each in used:
        labels, usage = [node, *_labels(each.tenant)], each.usage
        _add(vgpu, labels, usage.memory_used)
        _add(memory, labels, usage.memory_used)
        _add(busy, labels, usage.utilization)
        _add(last, labels, _elapsed(each, now))
        _add(context, labels, usage.memory_context)
        _add(module, labels, usage.memory_module)
        _add(buffer, labels, usage.memory_buffer)
    yield from (vgpu, memory, busy, last, context, module, buffer)


def _as_hami_2_7(used: Iterable[TenantUsage], now: float) -> Iterator[Metric]:
    """Yield the names that HAMi's monitor had up to 2.7.0 (initLegacyDescriptors there)."""
    memory = _gauge("vGPU_device_memory_usage_in_bytes", "Memory of the card in use.", _OLD_LABELS)
    limit = _gauge("vGPU_device_memory_limit_in_bytes", "Memory of the card granted.", _OLD_LABELS)
    parts = _gauge("Device_memory_desc_of_container", "Memory in use, and its parts.", (*_OLD_LABELS, *_PARTS))
    busy = _gauge("Device_utilization_desc_of_container", "Utilization by the container, 0 to 100.", _OLD_LABELS)
    last = _gauge("Device_last_kernel_of_container", "Seconds since the container's last kernel.", _OLD_LABELS)
    for each in used:
        labels, usage = _labels(each.tenant), each.usage
        _add(memory, labels, usage.memory_used)
        _add(limit, labels, each.tenant.memory)
        _add(busy, labels, usage.utilization)
        _add(last, labels, _elapsed(each, now))
        amounts = (usage.memory_context, usage.memory_module, usage.memory_buffer)
        known = [each for each in amounts if each is not None]
        if usage.memory_used is not None and len(known) == len(amounts):
            offset = usage.memory_used - sum(known)
            parts.add_metric([*labels, *map(str, (*known, offset))], usage.memory_used)
    yield from (memory, limit, parts, busy, last)


def _gauge(name: str, text: str, labels: Collection[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))


def _labels(tenant: CardTenant) -> list[str]:
    return [tenant.namespace, tenant.pod, tenant.container, str(tenant.number), tenant.card]


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _elapsed(each: TenantUsage, now: float) -> float | None:
    return None if each.last_kernel is None else max(0.0, now - each.last_kernel)
