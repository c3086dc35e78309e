"""The main demonstration on the embedded cluster: four patterns, run one by one by the real controller.

Called by `hami-dra demo`. In: the Deployments to show. Out: for each, what its pods got. Everything
but Kubernetes itself is what runs on a real cluster: webhook conversion, controller, fleet
publisher. Must not print.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct

from controller.inventory import Inventory
from controller.reconcile.controller import Controller, Process
from controller.reconcile.runtime import DriverSettings, Settings
from controller.settings.controller import FenceSettings, LeadershipSettings
from controller.views.overview import Card, PlacedPod, overview
from controller.webhook import Admission, LegacyConversion, memory_webhook
from hami_dra.api import kinds, names
from hami_dra.api.config import FleetFile, FleetNodes
from hami_dra.driver.fleet import Fleet
from hami_dra.kube.embedded import EmbeddedControlPlane, MemoryCluster
from hami_dra.kube.manifests import apply, shipped
from hami_dra.vendors.registry import plugin_of

FLEET: Final = FleetFile(
    name="demo",
    nodes=(
        FleetNodes(machine="g4dn.12xlarge", name="gpu-node-1"),
        FleetNodes(machine="g5.12xlarge", name="gpu-node-2"),
    ),
)
NAMESPACE: Final = "default"
PATIENCE: Final = 30.0


class DemoFailed(RuntimeError):
    """A pattern was not complete in time; the message says what was missing."""


class Pattern(Struct, frozen=True):
    name: str
    node_policy: str
    device_policy: str
    pods: tuple[PlacedPod, ...]
    cards: tuple[Card, ...]
    """By node, then index."""


class Demonstration:
    """One embedded cluster with everything running; see `running`."""

    def __init__(self, cluster: MemoryCluster, inventory: Inventory) -> None:
        self._cluster = cluster
        self._inventory = inventory

    async def show(self, deployment: Mapping[str, Any]) -> Pattern:
        """Apply, wait until all pods run, read the result, delete, wait until nothing is left. Raises DemoFailed."""
        name = deployment["metadata"]["name"]
        wanted = int(deployment["spec"].get("replicas", 1))
        await self._cluster.create(kinds.DEPLOYMENT, deployment, namespace=NAMESPACE)
        await self._until(f"{wanted} pods of {name} bound", lambda: self._bound(wanted))
        pattern = await self._look(deployment)
        await self._cluster.delete(kinds.DEPLOYMENT, name, namespace=NAMESPACE)
        await self._until(f"everything of {name} gone", self._nothing_left)
        return pattern

    async def _bound(self, wanted: int) -> bool:
        pods = (await self._cluster.list(kinds.POD, namespace=NAMESPACE)).items
        return len(pods) == wanted and all(pod.spec.node_name for pod in pods)

    async def _nothing_left(self) -> bool:
        pods = await self._cluster.list(kinds.POD, namespace=NAMESPACE)
        claims = await self._cluster.list(kinds.RESOURCE_CLAIM, namespace=NAMESPACE)
        return not (pods.items or claims.items)

    async def _until(self, what: str, reached: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not await reached():  # noqa: ASYNC110 # in memory, polling is cheaper than two watches
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise DemoFailed(f"not within {PATIENCE:g} s: {what}") from None

    async def _look(self, deployment: Mapping[str, Any]) -> Pattern:
        annotations = deployment["spec"]["template"]["metadata"].get("annotations", {})
        pods = (await self._cluster.list(kinds.POD, namespace=NAMESPACE)).items
        claims = {
            claim.key: claim for claim in (await self._cluster.list(kinds.RESOURCE_CLAIM, namespace=NAMESPACE)).items
        }
        return Pattern(
            name=deployment["metadata"]["name"],
            node_policy=annotations.get(names.NODE_POLICY, names.BINPACK),
            device_policy=annotations.get(names.DEVICE_POLICY, names.SPREAD),
            pods=tuple(PlacedPod.of(pod, claims.get) for pod in sorted(pods, key=lambda pod: pod.key)),
            cards=overview(self._inventory, claims.values(), pods).cards,
        )


@asynccontextmanager
async def running() -> AsyncIterator[Demonstration]:
    """Run the embedded cluster, two simulated nodes, webhook and controller within the block."""
    cluster = MemoryCluster()
    cluster.admission.append(memory_webhook(Admission(cluster)))
    for name in (NAMESPACE, names.SYSTEM_NAMESPACE):
        await cluster.create(kinds.NAMESPACE, {"metadata": {"name": name}})
    await apply(cluster, [raw for raw in shipped("deviceclasses") if raw["metadata"]["name"].endswith(names.DOMAIN)])
    await Fleet(cluster, FLEET).sync_once()
    synced = asyncio.Event()
    # One replica, and a scheduler that allocates nothing: no election and no fence handshake
    # needed.
    driver = plugin_of("nvidia").driver
    settings = Settings(
        drivers=DriverSettings(managed=frozenset({driver}), own_drivers=frozenset({driver})),
        fence=FenceSettings(quiet_time=0.0, probe=False),
        leadership=LeadershipSettings(leader_election=False),
    )
    controller = Controller(cluster, settings, conversion=LegacyConversion(), process=Process(on_synced=synced.set))
    async with EmbeddedControlPlane(cluster):
        task = asyncio.create_task(controller.run())
        try:
            waiting = asyncio.create_task(synced.wait())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                waiting.cancel()
                task.result()
            yield Demonstration(cluster, controller.inventory)
        finally:
            task.cancel()
            await asyncio.wait({task})
