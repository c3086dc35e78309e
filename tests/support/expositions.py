"""What the three programs say on /metrics, after some life on small clusters: for tests of names, documents, dashboard and alert rules."""

import functools
from datetime import UTC, datetime
from typing import Any

from prometheus_client import generate_latest

from controller.decide import decide
from controller.reconcile.controller import Controller
from controller.webhook.server.certificates import renewed
from controller.webhook.server.server import WebhookMetrics
from hami_dra.api import kinds
from hami_dra.api.hardware import Card
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.driver.node.hardware_metrics import MonitoredVendor
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.monitoring import Failure, Monitoring
from hami_dra.driver.node.tenants import CardTenant
from hami_dra.driver.simulated import machine
from hami_dra.monitor.readings import Reading, Sample
from hami_dra.monitor.usage import CardUsage, ContainerUsage, GrantedContainer
from tests.cards import card
from tests.support.harness import SPACE, Harness, claim, device_class, node, play, pod

DRIVER = "nvidia.hami.io"
SETTINGS: dict[str, Any] = {
    "managed": frozenset({DRIVER}),
    "own_drivers": frozenset({DRIVER}),
    "quiet_time": 0.0,
    "probe": False,
    "decide": decide,
}
_GIB = 1 << 30


def text_of(controller: Controller) -> str:
    """All of what Prometheus would be told now."""
    assert controller.scrape is not None
    return generate_latest(controller.metrics.registry).decode() + "".join(controller.scrape.blocks())


async def furnish(harness: Harness, nodes: int = 2) -> None:
    """Nodes with two linked cards each, a class `ours`, and a quota."""
    await harness.add(kinds.DEVICE_CLASS, device_class("ours", DRIVER))
    for number in range(nodes):
        name = f"gpu-{number}"
        cards = [card(index) for index in range(2)]
        for index, each in enumerate(cards):
            each["attributes"]["hami.io/uuid"] = {"string": f"GPU-{number}-{index}"}
            each["attributes"]["hami.io/linkGroup"] = {"int": 1}
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": cards}
        await harness.add(kinds.NODE, node(name))
        await harness.add(kinds.RESOURCE_SLICE, {"metadata": {"name": f"{name}-nvidia"}, "spec": spec})
    hard = {"limits.nvidia.com/gpumem": str(40 * 1024), "limits.nvidia.com/gpu": "10"}
    await harness.add(kinds.RESOURCE_QUOTA, {"metadata": {"name": "team", "namespace": SPACE}, "spec": {"hard": hard}})


@functools.cache
def of_controller(also: frozenset[NameSet] = frozenset()) -> str:
    """Two pods that were placed, one that nowhere finds room."""
    said = []

    async def story(harness: Harness) -> None:
        await furnish(harness)
        for name, memory in (("small", 4), ("large", 12), ("huge", 30)):
            await harness.add(kinds.RESOURCE_CLAIM, claim(name, memory, device_class="ours"))
            await harness.add(kinds.POD, pod(name, claims=[name]))
        await harness.bound("small", "large")
        await harness.sleep(30)
        said.append(text_of(harness.controller))

    play(story, nodes=0, legacy_metrics=also, **SETTINGS)
    return said[0]


class _Sampler:
    source = "nvml"

    def sample(self, _cards: object) -> Sample[Reading]:
        raise AssertionError("nobody looks here")

    def close(self) -> None:
        return


class _Reader:
    source = "hami-core"

    def sample(self, _containers: object) -> Sample[ContainerUsage]:
        raise AssertionError("nobody looks here")

    def close(self) -> None:
        return


@functools.cache
def of_driver(also: frozenset[NameSet] = frozenset()) -> str:
    """One card and one container that say all there is to say."""
    metrics = DriverMetrics()
    (first, *_) = cards = machine("g4dn.12xlarge", "gpu-0").cards
    monitoring: Monitoring[Card, Reading] = Monitoring("nvidia", _Sampler(), lambda: cards, 15.0)
    monitoring.looks = 3
    monitoring.failures[Failure.HANGS] = 1
    reading = Reading(
        uuid=first.uuid, memory_total=16 * _GIB, memory_used=_GIB, utilization=40.0, memory_utilization=10.0,
        temperature=50.0, memory_temperature=55.0, power=70.5, fan=30.0, ecc_corrected=7, ecc_uncorrected=0,
    )  # fmt: skip
    monitoring.readings = {first.uuid: reading}
    tenant = CardTenant("default", "small", "main", 0, first.uuid, 4 * _GIB, 30, view="v")
    usage: Monitoring[GrantedContainer, ContainerUsage] = Monitoring("nvidia", _Reader(), lambda: (), 5.0)
    used = CardUsage(
        memory_used=_GIB, memory_context=1 << 20, memory_module=1 << 20, memory_buffer=1 << 29, utilization=35.0
    )
    usage.readings = {"v": ContainerUsage(cards={first.uuid: used}, last_kernel=1_700_000_000)}
    watched = MonitoredVendor(DRIVER, "nvidia", cards, frozenset(), [tenant], monitoring, usage)
    metrics.watch("gpu-0", lambda: [watched], also)
    for gauge in (metrics.cards, metrics.cordoned, metrics.devices, metrics.registered, metrics.readings_failed):
        gauge.labels(DRIVER).set(1)
    metrics.faulty.labels(DRIVER, "xid").set(0)
    for call in ("prepare", "unprepare"):
        metrics.seconds.labels(DRIVER, call).observe(0.02)
        metrics.claims.labels(DRIVER, call, "done").inc()
    return generate_latest(metrics.registry).decode()


@functools.cache
def of_webhook() -> str:
    metrics = WebhookMetrics()
    metrics.reviewed({"response": {"allowed": True, "patch": "..."}})
    metrics.seconds.observe(0.003)
    metrics.serves(renewed(None, ["hami-dra-webhook.hami-dra-system.svc"], datetime.now(UTC)).certificate)
    return generate_latest(metrics.registry).decode()
