"""Run the controller: it scores nodes and devices for pending pods with claims and writes the allocations.

One replica leads, elected by a Lease; any number may be on standby. /healthz, /readyz and /metrics
are on the port.

Examples:
    hami-dra controller
    hami-dra controller --kubeconfig ~/.kube/config --no-leader-elect -v 4
    hami-dra controller --manage gpu.nvidia.com --device-policy binpack
    hami-dra controller --manage-profile driverprofiles/gpu.amd.com.yaml
    hami-dra controller --mode native
    hami-dra controller --dashboard-bind 127.0.0.1:8090
"""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from controller.cli.errors import CommandError
from controller.cli.profile_options import driver_profiles
from controller.settings.common import INSTALL_NAMESPACE_RENAMED, ControllerLog, Health, Kubeconfig
from controller.settings.controller import (
    BindingSettings,
    DashboardSettings,
    FenceSettings,
    LeadershipSettings,
    ObservabilitySettings,
    QueueingSettings,
    RepairSettings,
)
from controller.settings.placing import ControllerPreemption, ControllerScheduler, DriverOptions, PolicyOptions
from hami_dra.api import names

if TYPE_CHECKING:
    import asyncio

    from controller.reconcile.controller import Controller
    from controller.reconcile.runtime import Informers, Settings
    from hami_dra.kube.protocol import Cluster

_LONGEST_DRIVER: Final = 63
_DRIVER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

RENAMED = INSTALL_NAMESPACE_RENAMED


def controller(
    *,
    kubeconfig: Kubeconfig = None,
    drivers: DriverOptions,
    policies: PolicyOptions,
    scheduler: ControllerScheduler,
    preemption: ControllerPreemption,
    binding: BindingSettings,
    queueing: QueueingSettings,
    fence: FenceSettings,
    repair: RepairSettings,
    leadership: LeadershipSettings,
    health: Health,
    observability: ObservabilitySettings,
    dashboard: DashboardSettings,
    log: ControllerLog,
) -> None:
    from controller.cli.policy_options import default_policies, feature_gates
    from controller.cli.service import run_service
    from controller.decide import Options
    from controller.reconcile import runtime
    from hami_dra import logs
    from hami_dra.kube.lease import unique_identity
    from hami_dra.vendors.registry import OWN_DRIVERS

    if dashboard.bind[0]:
        import_module("controller.dashboard")  # before anything runs: what it needs may not be installed
    logs.configure(log.verbosity, logs.LogFormat(log.log_format))
    profiles = driver_profiles(scheduler.manage_profile)
    settings = runtime.Settings(
        drivers=runtime.DriverSettings(
            mode=runtime.Mode(drivers.mode),
            managed=OWN_DRIVERS | _driver_names([*drivers.manage, *profiles.given]),
            own_drivers=OWN_DRIVERS,
            profiles=profiles,
        ),
        scheduling=runtime.SchedulingSettings(
            scheduler_names=scheduler.scheduler_name,
            gate=drivers.gate,
            gang_sources=frozenset(scheduler.gangs_of or ()),
            policies=default_policies(policies),
            options=Options(
                first_fit=policies.device_policy == names.FIRST_FIT,
                honor_preferences=scheduler.preferences,
                gates=feature_gates(scheduler.feature_gates),
            ),
        ),
        preemption=preemption,
        queueing=queueing,
        binding=binding,
        fence=fence,
        repair=repair,
        observability=replace(observability, identity=unique_identity()),
        leadership=leadership,
    )
    run_service(_serve(kubeconfig, settings, (health.host, health.port), dashboard))


def _driver_names(given: Sequence[str]) -> frozenset[str]:
    """Raises CommandError."""
    for driver in given:
        if len(driver) > _LONGEST_DRIVER or not _DRIVER_NAME.fullmatch(driver):
            raise CommandError(
                f"--manage: {driver!r} is not a driver name; write it as in ResourceSlices: gpu.nvidia.com"
            )
    return frozenset(given)


async def _serve(
    kubeconfig: str | None, settings: "Settings", listen: tuple[str, int], dashboard: "DashboardSettings"
) -> None:
    import asyncio

    from controller.cli.heap import collect_in_pieces, settle
    from controller.reconcile.controller import Controller, Process
    from controller.reconcile.observability import SideServices
    from controller.webhook import LegacyConversion, TemplateCollector
    from hami_dra.kube.http import connect
    from hami_dra.kube.side_thread import SideThread
    from hami_dra.kube.transport import Timeouts

    timeouts = Timeouts(write=settings.leadership.write_timeout)
    cluster = connect(kubeconfig, timeouts=timeouts)

    async def collect(informers: "Informers", may_write: Callable[[], bool]) -> None:
        await TemplateCollector(
            cluster, lambda: informers.templates.store, informers.is_template_used, may_write=may_write
        ).run()

    collect_in_pieces()
    synced = asyncio.Event()

    def on_synced() -> None:
        settle()
        synced.set()

    with SideThread("lease and health") as thread:
        side = SideServices(thread, connect(kubeconfig, timeouts=timeouts))
        controller = Controller(
            cluster,
            settings,
            conversion=LegacyConversion(native=settings.drivers.mode == "native"),
            helpers=(collect,),
            process=Process(listen=listen, side=side, on_synced=on_synced),
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(controller.run(), name="controller")
                if dashboard.bind[0]:
                    group.create_task(_serve_dashboard(controller, cluster, dashboard, synced), name="page")
        finally:
            await thread.run(side.cluster.close)
            await cluster.close()


async def _serve_dashboard(
    controller: "Controller", cluster: "Cluster", settings: DashboardSettings, synced: "asyncio.Event"
) -> None:
    """Serve the dashboard until cancelled, once the controller is in sync. Raises ConfigError."""
    import asyncio

    from controller.dashboard import Source, serving
    from hami_dra.api.errors import ConfigError

    await synced.wait()
    try:
        async with serving(Source(controller), cluster, settings, namespace=controller.settings.leadership.namespace):
            await asyncio.Event().wait()
    except OSError as error:
        host, port = settings.bind
        raise ConfigError(f"--dashboard-bind: {host}:{port}: {error.strerror or error}") from error
