"""What containers use of the cards that they share, for Prometheus: collected at each scrape, from memory.

Used by `hardware_metrics`. Our names carry their units, and ratios go from 0 to 1; HAMi's monitor's
names (`NameSet`) have its ranges and labels. A value that is not reported has no sample.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from prometheus_client.core import Metric

from hami_dra.api import names
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.metric_families import Column, gauge, gauges
from hami_dra.driver.node.tenants import CardTenant
from hami_dra.monitor.usage import CardUsage, ContainerUsage

LABELS: Final = ("node", "namespace", "pod", "container", "vdevice_index", "device_uuid")
"""HAMi's labels of a container, and the node."""
_OLD_LABELS: Final = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_PARTS: Final = ("context", "module", "data", "offset")
"""Labels in which HAMi up to 2.7 has amounts of memory."""
_WHOLE: Final = 100
_MEMORY: Final = "Memory of the card that the container uses."
_UTILIZATION: Final = "Utilization by the container, 0 to 100."


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
    subjects = [([node, *_labels(each.tenant)], each) for each in used]
    yield from gauges(_OURS, LABELS, subjects)
    yield gauge(
        "hami_dra_container_memory_part_bytes",
        "Parts of it, by kind: context, module (code), buffer (data).",
        (*LABELS, "part"),
        (
            ([*labels, part], amount)
            for labels, each in subjects
            for part, amount in zip(("context", "module", "buffer"), each.usage.memory_parts, strict=True)
        ),
    )
    if NameSet.HAMI in also:
        yield from gauges(_OF_HAMI, LABELS, subjects)
        elapsed = [(labels, _elapsed(each, now())) for labels, each in subjects]
        yield gauge("hami_container_last_kernel_elapsed_seconds", "Since the container's last kernel.", LABELS, elapsed)
    if NameSet.HAMI_2_7 in also:
        yield from _as_hami_2_7(used, now())


_OURS: Final[tuple[Column[TenantUsage], ...]] = (
    Column(names.METRIC_CONTAINER_MEMORY, _MEMORY, lambda it: it.usage.memory_used),
    Column(
        names.METRIC_CONTAINER_UTILIZATION,
        "Share of the card's cores that the container uses, 0 to 1.",
        lambda it: None if it.usage.utilization is None else it.usage.utilization / _WHOLE,
    ),
    Column(
        "hami_dra_container_last_kernel_timestamp_seconds",
        "When the container last launched a kernel, as a Unix timestamp.",
        lambda it: it.last_kernel,
    ),
)
_OF_HAMI: Final[tuple[Column[TenantUsage], ...]] = (
    Column(
        "hami_vgpu_memory_used_bytes", "Memory of the card that the container uses.", lambda it: it.usage.memory_used
    ),
    Column("hami_container_device_memory_bytes", _MEMORY, lambda it: it.usage.memory_used),
    Column("hami_container_device_utilization_ratio", _UTILIZATION, lambda it: it.usage.utilization),
    Column("hami_vgpu_memory_context_bytes", "Memory of the container's contexts.", lambda it: it.usage.memory_context),
    Column("hami_vgpu_memory_module_bytes", "Memory of the container's modules.", lambda it: it.usage.memory_module),
    Column("hami_vgpu_memory_buffer_bytes", "Memory of the container's buffers.", lambda it: it.usage.memory_buffer),
)
"""The names of HAMi's monitor since it has names with units (cmd/vGPUmonitor/metrics.go)."""
_OF_HAMI_2_7: Final[tuple[Column[TenantUsage], ...]] = (
    Column("vGPU_device_memory_usage_in_bytes", "Memory of the card in use.", lambda it: it.usage.memory_used),
    Column("vGPU_device_memory_limit_in_bytes", "Memory of the card granted.", lambda it: it.tenant.memory),
    Column("Device_utilization_desc_of_container", _UTILIZATION, lambda it: it.usage.utilization),
)
"""The names that HAMi's monitor had up to 2.7.0 (initLegacyDescriptors there)."""


def _as_hami_2_7(used: Iterable[TenantUsage], now: float) -> Iterator[Metric]:
    subjects = [(_labels(each.tenant), each) for each in used]
    yield from gauges(_OF_HAMI_2_7, _OLD_LABELS, subjects)
    parts = []
    for labels, each in subjects:
        whole, amounts = each.usage.memory_used, [part for part in each.usage.memory_parts if part is not None]
        if whole is not None and len(amounts) == len(each.usage.memory_parts):
            parts.append(([*labels, *map(str, amounts), str(whole - sum(amounts))], whole))
    text = "Memory in use, and its parts."
    yield gauge("Device_memory_desc_of_container", text, (*_OLD_LABELS, *_PARTS), parts)
    elapsed = ((labels, _elapsed(each, now)) for labels, each in subjects)
    yield gauge("Device_last_kernel_of_container", "Seconds since the container's last kernel.", _OLD_LABELS, elapsed)


def _labels(tenant: CardTenant) -> list[str]:
    return [tenant.namespace, tenant.pod, tenant.container, str(tenant.number), tenant.card]


def _elapsed(each: TenantUsage, now: float) -> float | None:
    return None if each.last_kernel is None else max(0.0, now - each.last_kernel)
