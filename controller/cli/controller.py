"""`hami-dra controller`: selects node and devices for pending pods, and writes the allocations."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import completion_values as values
from controller.cli import option_types
from controller.cli.command import Command
from controller.cli.controller_options import decide_options, default_policies, lease_timings, managed_drivers
from controller.cli.durations import seconds
from controller.cli.errors import CommandError
from controller.cli.heap import collect_in_pieces, return_holes
from controller.cli.page import DashboardAuth, Readings, page_settings, serve_page
from controller.cli.profile_options import ManageProfile, driver_profiles
from controller.cli.service_options import (
    INSTALL_NAMESPACE_RENAMED,
    FeatureGatesOption,
    GangSourcesOption,
    Gate,
    HealthHost,
    HealthPort,
    InstallNamespace,
    Kubeconfig,
    LogFormat,
    LogFormatOption,
    Mode,
    PreferenceMode,
    PreferencesOption,
)
from hami_dra.api import names
from hami_dra.api.legacy_metrics import NameSet

if TYPE_CHECKING:
    from controller.dashboard import DashboardSettings as PageSettings
    from controller.reconcile.runtime import Informers, Settings

HELP = """Run the controller: it scores nodes and devices for pending pods with claims and writes the allocations.

One replica leads, elected by a Lease; any number may be on standby. /healthz, /readyz and /metrics are on the port.

Examples:
    hami-dra controller
    hami-dra controller --kubeconfig ~/.kube/config --no-leader-elect -v 4
    hami-dra controller --manage gpu.nvidia.com --device-policy binpack
    hami-dra controller --manage-profile driverprofiles/gpu.amd.com.yaml
    hami-dra controller --mode native
    hami-dra controller --dashboard-bind 127.0.0.1:8090
"""


class _Command(Command):
    RENAMED = INSTALL_NAMESPACE_RENAMED


def register(app: typer.Typer) -> None:
    app.command("controller", help=HELP, cls=_Command)(controller)


def controller(
    *,
    kubeconfig: Kubeconfig = None,
    mode: Annotated[
        Mode, typer.Option(help="native: kube-scheduler allocates; the controller only observes and accounts.")
    ] = Mode.exclusive,
    gate: Annotated[Gate, typer.Option(help="off: the scheduling gate is removed from pods at once.")] = Gate.on,
    manage: Annotated[
        list[str] | None,
        typer.Option(metavar="DRIVER", help="A DRA driver to manage in addition to hami-dra's own; may be repeated."),
    ] = None,
    manage_profile: ManageProfile = None,
    node_policy: Annotated[
        str,
        typer.Option(
            help="Policy where no annotation sets one: binpack, spread or fair-share.",
            autocompletion=values.node_policies,
        ),
    ] = names.BINPACK,
    device_policy: Annotated[
        str,
        typer.Option(
            help="Policy where no annotation sets one: spread, binpack, topology-aware, mutex, numa, or a comma-separated list. "
            "first-fit (Kubernetes' own order) overrides annotations.",
            autocompletion=values.device_policies,
        ),
    ] = names.SPREAD,
    packing_weights: Annotated[
        str,
        typer.Option(
            help="Weights of fair-share and scarce devices where no annotation sets them; default: theta=0.65,left=0.5,rare=0,large=0."
        ),
    ] = "",
    default: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Value of a vendor's annotation where pod, claim, template and class do not set it; may be repeated: "
            "hami.io/gpu-topology=required.",
        ),
    ] = None,
    scheduler_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Only pods of these schedulers are placed; may be repeated.", callback=option_types.scheduler_names
        ),
    ] = None,
    preferences: PreferencesOption = PreferenceMode.honor,
    feature_gates: FeatureGatesOption = "",
    installation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            callback=option_types.installation_name,
            help="Name that the allocations of this controller carry; it never touches those of another installation.",
        ),
    ] = names.MANAGED_BY,
    install_namespace: InstallNamespace = names.SYSTEM_NAMESPACE,
    unschedulable_timeout: Annotated[
        str, typer.Option(help="How long kube-scheduler may refuse a pod before its allocation is undone.")
    ] = "15s",
    gate_patience: Annotated[
        str, typer.Option(help="How long an unschedulable pod keeps the gate; autoscalers see it afterwards.")
    ] = "10s",
    gang_hold: Annotated[
        str,
        typer.Option(
            help="How long waiting members of a gang keep their devices when another one was refused and some run already."
        ),
    ] = "2m",
    gangs_of: GangSourcesOption = None,
    orphan_age: Annotated[
        str, typer.Option(help="How long an allocation may exist without a pod that refers to it, before it is freed.")
    ] = "60s",
    event_interval: Annotated[
        str, typer.Option(help="Minimum time between two warnings about a pod that differ only in their figures.")
    ] = "30s",
    quiet_time: Annotated[
        str, typer.Option(help="How long nothing is committed after the fence was created or restored.")
    ] = "10s",
    probe: Annotated[
        bool, typer.Option(help="Verify with a probe claim that the fence holds before committing.")
    ] = True,
    probe_image: Annotated[
        str,
        typer.Option(
            callback=option_types.image,
            help="Image of the probe pod, which never runs while the fence holds; the policy controller-probe.hami.io names it, too.",
        ),
    ] = names.PROBE_IMAGE,
    leader_elect: Annotated[
        bool, typer.Option(help="Act only while holding the lease; switch it off only for a single replica.")
    ] = True,
    lease_duration: Annotated[
        str, typer.Option(help="Time without a renewal after which another replica may lead.")
    ] = "15s",
    renew_deadline: Annotated[str, typer.Option(help="How long a leader continues without renewing.")] = "8s",
    retry_period: Annotated[str, typer.Option(help="Time between two attempts to acquire or renew the lease.")] = "2s",
    write_timeout: Annotated[
        str, typer.Option(help="Longest duration of a write; a new leader waits that long before it acts.")
    ] = "5s",
    stall_limit: Annotated[
        str,
        typer.Option(
            help="How long one decision may hold up the controller before it hands over to another replica, which holds that "
            "pod back; after 1.5 times as long /healthz fails."
        ),
    ] = "20s",
    host: HealthHost = "0.0.0.0",  # noqa: S104 (kubelet and Prometheus call from outside the pod)
    port: HealthPort = 8080,
    card_metrics: Annotated[
        bool, typer.Option(help="Export a series for each device, and for each pod that holds part of it, on /metrics.")
    ] = True,
    legacy_metrics: Annotated[
        list[NameSet] | None,
        typer.Option(
            metavar="NAMES",
            help="Also export them under HAMi's names: hami (hami_gpu_*), hami-2.7 (GPUDeviceMemoryLimit, ...); may be repeated.",
        ),
    ] = None,
    dashboard_bind: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address of the dashboard, for example 127.0.0.1:8090; empty: no dashboard."
        ),
    ] = "",
    dashboard_auth: Annotated[
        DashboardAuth,
        typer.Option(
            help="Authentication: cluster uses TokenReview and SubjectAccessReview; off disables it, on loopback only."
        ),
    ] = DashboardAuth.cluster,
    dashboard_cert: Annotated[Path | None, typer.Option(help="The dashboard's certificate (PEM), for HTTPS.")] = None,
    dashboard_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    dashboard_readings: Annotated[
        Readings,
        typer.Option(
            help="on: while a dashboard page is open, read the devices' actual use from the node drivers' metrics port."
        ),
    ] = Readings.on,
    dashboard_grafana: Annotated[
        str, typer.Option(metavar="URL", help="A Grafana dashboard that every page of the dashboard links to.")
    ] = "",
    log_format: LogFormatOption = LogFormat.text,
    verbosity: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbosity",
            min=0,
            max=option_types.MOST_VERBOSE,
            help="Log level: 0 warnings only, 2 normal, 4 one line per node, 5 everything.",
        ),
    ] = 2,
) -> None:
    from controller.cli.service import run_service
    from controller.reconcile import runtime
    from hami_dra import logs
    from hami_dra.kube.lease import unique_identity
    from hami_dra.kube.protocol import ConfigError
    from hami_dra.vendors.registry import OWN_DRIVERS

    logs.configure(verbosity, logs.LogFormat(log_format.value))
    first_fit = device_policy == names.FIRST_FIT
    profiles = driver_profiles(manage_profile)
    try:
        settings = runtime.Settings(
            drivers=runtime.DriverSettings(
                mode=runtime.Mode(mode.value),
                managed=managed_drivers([*(manage or ()), *profiles.given]),
                own_drivers=OWN_DRIVERS,
                profiles=profiles,
            ),
            scheduling=runtime.SchedulingSettings(
                scheduler_names=frozenset(scheduler_name or ["default-scheduler"]),
                gate=gate is Gate.on,
                gang_sources=frozenset(each.value for each in gangs_of or ()),
                policies=default_policies(
                    node_policy, names.SPREAD if first_fit else device_policy, default or [], packing_weights
                ),
                options=decide_options(
                    feature_gates, first_fit=first_fit, honor_preferences=preferences is PreferenceMode.honor
                ),
            ),
            queueing=runtime.QueueingSettings(
                gate_patience=seconds(gate_patience, "--gate-patience"), gang_hold=seconds(gang_hold, "--gang-hold")
            ),
            binding=runtime.BindingSettings(installation=installation),
            fence=runtime.FenceSettings(
                quiet_time=seconds(quiet_time, "--quiet-time"), probe=probe, probe_image=probe_image
            ),
            repair=runtime.RepairSettings(
                unschedulable_timeout=seconds(unschedulable_timeout, "--unschedulable-timeout"),
                orphan_age=seconds(orphan_age, "--orphan-age"),
            ),
            observability=runtime.ObservabilitySettings(
                identity=unique_identity(),
                event_interval=seconds(event_interval, "--event-interval"),
                card_metrics=card_metrics,
                legacy_metrics=frozenset(legacy_metrics or ()),
            ),
            leadership=runtime.LeadershipSettings(
                leader_election=leader_elect,
                namespace=install_namespace,
                lease=lease_timings(lease_duration, renew_deadline, retry_period, write_timeout),
                stall_limit=seconds(stall_limit, "--stall-limit"),
            ),
        )
    except ConfigError as error:
        raise CommandError(str(error)) from error
    page = page_settings(
        dashboard_bind, dashboard_auth, (dashboard_cert, dashboard_key), dashboard_readings, grafana=dashboard_grafana
    )
    run_service(_serve(kubeconfig, settings, (host, port), page))


async def _serve(
    kubeconfig: str | None, settings: "Settings", listen: tuple[str, int], page: "PageSettings | None"
) -> None:
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
        _settle_memory()
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
                if page is not None:
                    group.create_task(serve_page(controller, cluster, page, synced), name="page")
        finally:
            await thread.run(side.cluster.close)
            await cluster.close()


def _settle_memory() -> None:
    """Exclude the present contents of the stores from garbage collection, and return the memory
    that reading the lists left free.
    """
    gc.collect(0)  # reading makes no cycles: to look for them everywhere is a twentieth of a start
    gc.freeze()
    return_holes()
