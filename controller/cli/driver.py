"""`hami-dra driver`: the half of hami-dra that runs on every node with accelerators."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import option_types
from controller.cli.driver_options import (
    chosen_backends,
    device_ranking,
    node_settings,
    seen_driver_root,
    simulated_machine,
    taint_effects,
)
from controller.cli.durations import seconds
from controller.cli.service_options import (
    FenceOption,
    HealthHost,
    HealthPort,
    Kubeconfig,
    LogFormat,
    LogFormatOption,
    Mode,
    Verbosity,
)
from controller.cli.vendor_options import VENDORS, DriverCommand, vendor_settings
from hami_dra.api import names
from hami_dra.api.legacy_metrics import NameSet

if TYPE_CHECKING:
    from hami_dra.discovery.backend import Backend
    from hami_dra.driver.node.settings import NodeSettings
    from hami_dra.driver.node.wiring import Wiring

HELP = """Run the node driver: it finds the devices of this node, publishes them, monitors their health and serves kubelet.

One process serves all vendors whose devices it finds, or the named ones. SIGHUP makes it read the hardware
again. /healthz, /readyz and /metrics are on the port.

Examples:
    hami-dra driver --node gpu-node-1
    hami-dra driver --node gpu-node-1 --vendor nvidia --slots 4
    hami-dra driver --node gpu-node-1 --taint-effect lost=NoSchedule
    hami-dra driver --node gpu-node-1 --mode native --device-policy binpack
    hami-dra driver --node n1 --machine dgx-h100 --simulated-faults faults

A file of simulated faults has one fault a line: the device's index or UUID, a code, a message. Changes to
the file take effect while the driver runs.

    2 xid-79 GPU has fallen off the bus
"""


class ExitOption(StrEnum):
    keep = "keep"
    withdraw = "withdraw"


def register(app: typer.Typer) -> None:
    app.command("driver", help=HELP, cls=DriverCommand)(driver)


def driver(
    context: typer.Context,
    *,
    node: Annotated[
        str, typer.Option(envvar="NODE_NAME", help="The Node that this machine is.", callback=option_types.node_name)
    ] = "",
    kubeconfig: Kubeconfig = None,
    vendor: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Serve this vendor even while none of its devices is found: {VENDORS}. May be repeated; default: all "
            "vendors whose devices are found."
        ),
    ] = None,
    machine: Annotated[
        str, typer.Option(help="Simulate this machine instead of reading hardware (hami-dra slices --list).")
    ] = "",
    simulated_faults: Annotated[
        Path | None, typer.Option(help="With --machine: a file that lists the devices that fail; see above.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="The controller's --mode. native: devices are ordered for kube-scheduler's first fit.")
    ] = Mode.exclusive,
    device_policy: Annotated[
        str,
        typer.Option(
            help="The order in native mode: spread, binpack, topology-aware, mutex, numa, or a comma-separated list; first-fit: by index."
        ),
    ] = names.SPREAD,
    fence: Annotated[
        FenceOption, typer.Option(help="The fence taint in the slices: auto depends on what the cluster serves.")
    ] = FenceOption.auto,
    publish_beside_plugin: Annotated[
        bool,
        typer.Option("--publish-beside-plugin", help="Publish even if a device plugin offers the same devices."),
    ] = False,
    taint_effect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=EFFECT",
            help="Effect of a kind of failure on a device. Kinds: lost (NoExecute), xid, memory-error, unhealthy (NoSchedule). "
            "Effects: NoSchedule, NoExecute, None. May be repeated.",
        ),
    ] = None,
    discover_every: Annotated[str, typer.Option(help="Time between two discoveries of the hardware.")] = "5m",
    health_every: Annotated[str, typer.Option(help="Time between two health checks of the devices.")] = "10s",
    check_claims_every: Annotated[
        str,
        typer.Option(help="Time between two checks that prepared claims still exist in the API server (one GET each)."),
    ] = "5m",
    monitor_interval: Annotated[
        str,
        typer.Option(
            help="Time between two readings of the devices' sensors (memory, temperature, ...) for /metrics; 0: never."
        ),
    ] = "15s",
    legacy_metrics: Annotated[
        list[NameSet] | None,
        typer.Option(
            metavar="NAMES",
            help="Also export what containers use under the names of HAMi's monitor: hami (hami_vgpu_*, hami_container_*), "
            "hami-2.7 (vGPU_device_memory_usage_in_bytes, ...); may be repeated.",
        ),
    ] = None,
    recovery_time: Annotated[
        str,
        typer.Option(help="How long a fault must be absent before it counts as over; doubled each time it recurs."),
    ] = "1m",
    confirm_time: Annotated[
        str, typer.Option(help="How long a fault must last before it may evict pods (NoExecute).")
    ] = "30s",
    on_exit: Annotated[
        ExitOption,
        typer.Option(
            help="Slices at exit. keep: for the driver's next start; kubelet removes them if it does not start."
        ),
    ] = ExitOption.keep,
    root: Annotated[Path, typer.Option(help="kubelet's root directory.", callback=option_types.absolute_path)] = Path(
        "/var/lib/kubelet"
    ),
    cdi_dir: Annotated[
        Path,
        typer.Option(
            help="Directory from which the container runtime reads CDI specs.", callback=option_types.absolute_path
        ),
    ] = Path("/var/run/cdi"),
    instance_uid: Annotated[
        str,
        typer.Option(
            envvar="POD_UID",
            callback=option_types.pod_uid,
            help="UID of the driver's pod: two may serve at the same time during an update.",
        ),
    ] = "",
    kernel_root: Annotated[
        Path,
        typer.Option(
            help="Directory that contains the node's /sys and /proc.",
            callback=option_types.absolute_path,
        ),
    ] = Path("/"),
    device_folder: Annotated[
        str,
        typer.Option(help="Directory of the hardware's device files on the node.", callback=option_types.absolute_path),
    ] = "/dev",
    host: HealthHost = "0.0.0.0",  # noqa: S104 (kubelet and Prometheus call from outside the pod)
    port: HealthPort = 8080,
    log_format: LogFormatOption = LogFormat.text,
    verbosity: Verbosity = 2,
) -> None:
    from controller.cli.service import run_service
    from hami_dra import logs
    from hami_dra.api.containers import HostSettings
    from hami_dra.driver.node.wiring import Wiring

    logs.configure(verbosity, logs.LogFormat(log_format.value))
    options = vendor_settings(context)
    settings = node_settings(
        node=node,
        instance=instance_uid,
        root=root,
        native=mode is Mode.native,
        ranking=device_ranking(device_policy),
        options=options,
        fence=fence.value,
        beside_plugin=publish_beside_plugin,
        effects=taint_effects(taint_effect or []),
        discover_every=seconds(discover_every, "--discover-every"),
        health_every=seconds(health_every, "--health-every"),
        check_claims_every=seconds(check_claims_every, "--check-claims-every"),
        monitor_interval=seconds(monitor_interval, "--monitor-interval"),
        legacy_metrics=frozenset(legacy_metrics or ()),
        recovery_time=seconds(recovery_time, "--recovery-time"),
        confirm_time=seconds(confirm_time, "--confirm-time"),
        on_exit=on_exit.value,
    )
    backends, demanded = chosen_backends(vendor or [], machine, node, simulated_faults, settings.plugins_dir)
    wiring = Wiring(
        settings=settings,
        cdi_folder=cdi_dir,
        host=HostSettings(device_folder=device_folder, nodes_required=not machine, options=options),
        kernel_root=kernel_root,
        driver_root=None if machine else seen_driver_root(options),
        simulated=simulated_machine(machine, node).cards if machine else None,
    )
    run_service(_serve(kubeconfig, settings, wiring, (backends, demanded), (host, port)))


async def _serve(
    kubeconfig: str | None,
    settings: "NodeSettings",
    wiring: "Wiring",
    hardware: "tuple[list[Backend], frozenset[str]]",
    listen: tuple[str, int],
) -> None:
    import asyncio
    import logging
    import signal

    from hami_dra.driver.node.metrics import DriverMetrics
    from hami_dra.driver.node.service import NodeDriver
    from hami_dra.httpserver import Exposition, serving
    from hami_dra.kube.http import connect

    backends, demanded = hardware
    cluster = connect(kubeconfig)
    metrics = DriverMetrics()
    try:
        driver = NodeDriver(
            cluster,
            settings,
            backends,
            wiring.plugins(cluster, metrics),
            demanded=demanded,
            metrics=metrics,
            sampler=wiring.sampler,
            usage=wiring.usage,
        )
        rediscover: Callable[[], None] = driver.rediscover
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, rediscover)
        async with serving(*listen, render=Exposition(metrics).render, unready=driver.unready) as bound:
            logging.getLogger(__name__).info("health and metrics on port %d", bound)
            await driver.run()
    finally:
        await cluster.close()
