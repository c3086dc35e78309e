"""Assemble the server of kubelet's calls for one driver: gRPC services, preparation, claim status, health, metrics.

Created by the CLI; `NodeDriver` gets `plugins`. No decisions are made here: it only creates the
parts and connects them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field

from hami_dra.api.containers import ContainerVendor, HostSettings, Partitioner, RuntimePartitions
from hami_dra.api.errors import ConfigError
from hami_dra.api.hardware import Card
from hami_dra.discovery.host import CDI_FOLDERS, MachineHost
from hami_dra.driver.kubelet.server import KubeletPlugin
from hami_dra.driver.kubelet.sockets import SocketError
from hami_dra.driver.node.driver_runtime import DriverRuntime
from hami_dra.driver.node.metrics import DriverMetrics, Metered
from hami_dra.driver.node.null_devices import NullDeviceVendor
from hami_dra.driver.node.service import Plugin
from hami_dra.driver.node.settings import NodeSettings
from hami_dra.driver.prepare import (
    ClaimStatusWriter,
    NodePreparation,
    PrepareError,
    VanishedClaims,
    cdi_kind,
    transactions_of,
)
from hami_dra.kube.protocol import Cluster
from hami_dra.monitor.readings import CardSampler
from hami_dra.monitor.simulated import SimulatedSampler
from hami_dra.monitor.usage import UsageReader
from hami_dra.vendors.registry import CONTAINER_VENDORS, containers, plugin_of

log = logging.getLogger(__name__)

_PARTITIONS = "simulated-partitions.json"


class Wiring(Struct, frozen=True, kw_only=True):
    """What preparation needs from the machine. `simulated`: the cards, where they are not real."""

    settings: NodeSettings
    cdi_folder: Path
    host: HostSettings = field(default_factory=HostSettings)
    kernel_root: Path = Path("/")
    driver_root: Path | None = None
    """The folder of the node with a vendor's driver, as this process sees it."""
    simulated: Sequence[Card] | None = None

    def plugins(self, cluster: Cluster, metrics: DriverMetrics) -> Callable[[DriverRuntime], Plugin]:
        return lambda runtime: self._plugin(cluster, metrics, runtime)

    def sampler(self, runtime: DriverRuntime) -> CardSampler | None:
        if self.simulated is not None:
            return SimulatedSampler(runtime.loads, time.monotonic)
        backend = runtime.hardware.backend
        return plugin_of(backend.vendor).sampler(backend)

    def usage(self, runtime: DriverRuntime) -> UsageReader | None:
        usage = plugin_of(runtime.vendor.name).usage
        return usage(self.settings.options, time.time) if usage is not None else None

    def _plugin(self, cluster: Cluster, metrics: DriverMetrics, runtime: DriverRuntime) -> Plugin:
        driver, settings = runtime.driver, self.settings
        state_folder = settings.plugins_dir / driver
        vendor = self._vendor(runtime.vendor.name)
        host = self._host()
        status = ClaimStatusWriter(cluster, driver, lambda: datetime.now(UTC))
        work = transactions_of(
            lambda: runtime.inventory,
            vendor=vendor,
            host=host,
            partitioner=self._partitioner(runtime, state_folder),
            state_folder=state_folder,
            cdi_folder=self.cdi_folder,
        )
        preparation = NodePreparation(cluster, work, node=settings.node, report=status.add, forget=status.forget)
        vanished = VanishedClaims(
            cluster,
            driver,
            lambda: preparation.records,
            preparation.refresh,
            runtime.changed,
            interval=settings.check_claims_every,
        )
        preparation.on_change = vanished.prepared_changed
        runtime.prepared = lambda: preparation.records
        runtime.held_claims = vanished.report
        runtime.check_claims = vanished.look_again
        runtime.lacking = lambda: vendor.lacking(runtime.hardware.cards, host)
        runtime.inventory_changed = preparation.follow
        runtime.latest_records = preparation.latest
        runtime.runtime_partitions = self._runtime_partitions(runtime.vendor.name)
        with _as_config_error(driver):
            server = KubeletPlugin(
                driver,
                Metered(preparation, metrics, driver),
                runtime.health,
                folder=state_folder,
                registry=settings.registry_dir,
                instance=settings.instance,
            )
        return _Serving(driver, server, preparation, status, vanished, server.registered)

    def _host(self) -> MachineHost:
        return MachineHost(
            self.host,
            kernel_root=self.kernel_root,
            # simulated cards must not be taken for the machine's own
            cdi_folders=[*(CDI_FOLDERS if self.simulated is None else ()), self.cdi_folder],
            not_from=[cdi_kind(vendor.driver) for vendor in CONTAINER_VENDORS],
            driver_root=self.driver_root,
        )

    def _vendor(self, name: str) -> ContainerVendor:
        real_nodes = self.simulated is None or self.host.device_folder != HostSettings().device_folder
        return containers(name) if real_nodes else NullDeviceVendor(containers(name))

    def _partitioner(self, runtime: DriverRuntime, state_folder: Path) -> Partitioner | None:
        vendor = runtime.vendor.name
        plugin = plugin_of(vendor)
        if self.simulated is None:
            return plugin.partitioner(runtime.hardware.backend) if plugin.partitioner is not None else None
        if plugin.simulated_partitioner is None:
            return None
        return plugin.simulated_partitioner(
            [card for card in self.simulated if card.vendor == vendor], state_folder / _PARTITIONS
        )

    def _runtime_partitions(self, vendor: str) -> RuntimePartitions | None:
        partitions = plugin_of(vendor).runtime_partitions
        return partitions(self.settings.options) if partitions is not None and self.simulated is None else None


@dataclass(eq=False)
class _Serving:
    """The plugin of one driver. Implements `service.Plugin`."""

    driver: str
    server: KubeletPlugin
    preparation: NodePreparation
    status: ClaimStatusWriter
    vanished: VanishedClaims
    registered: asyncio.Event

    async def run(self) -> None:
        await self._tidy_up()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.preparation.run(), name=f"prepare {self.driver}")
            group.create_task(self.status.run(), name=f"claim status {self.driver}")
            group.create_task(self.vanished.run(), name=f"vanished claims {self.driver}")
            try:
                with _as_config_error(self.driver):
                    await self.server.start()
                await asyncio.Event().wait()
            finally:
                # before the two above end: pending calls still need them
                await self.server.stop()

    async def _tidy_up(self) -> None:
        try:
            problems = await self.preparation.start()
        except PrepareError as error:
            # calls get the same sentence, so that it is in the events of pods too
            log.error("%s: %s", self.driver, error)  # noqa: TRY400 (the sentence says it all)
            return
        for problem in problems:
            log.warning("%s: %s", self.driver, problem)


@contextmanager
def _as_config_error(driver: str) -> Iterator[None]:
    """Raise socket errors as ConfigError: without a socket there is no driver, so the operator must
    choose another folder or repair this one.
    """
    try:
        yield
    except SocketError as error:
        raise ConfigError(f"{driver}: {error}") from error
