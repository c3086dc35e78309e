"""`hami-dra driver`: the half of hami-dra that runs on every node with accelerators."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.driver_options import (
    cache_size,
    chosen_backends,
    device_ranking,
    node_settings,
    seen_driver_root,
    sharing_of,
    simulated_machine,
    taint_effects,
)
from controller.cli.durations import seconds
from controller.cli.service_options import (
    VENDORS,
    CommandWithVendors,
    FenceOption,
    HealthHost,
    HealthPort,
    Kubeconfig,
    LogFormat,
    LogFormatOption,
    Mode,
    Verbosity,
)
from hami_dra.api import names

if TYPE_CHECKING:
    from hami_dra.discovery.backend import Backend
    from hami_dra.driver.node.settings import NodeSettings
    from hami_dra.driver.node.wiring import Wiring

HELP = """Run the node driver: it finds the cards of this node, publishes them, monitors their health and serves kubelet.

One process serves all vendors whose cards it finds, or the named ones. SIGHUP makes it read the hardware
again. /healthz, /readyz and /metrics are on the port.

Examples:

    hami-dra driver --node gpu-node-1

    hami-dra driver --node gpu-node-1 --vendor nvidia --slots 4

    hami-dra driver --node gpu-node-1 --taint-effect lost=NoSchedule

    hami-dra driver --node gpu-node-1 --mode native --device-policy binpack

    hami-dra driver --node n1 --machine dgx-h100 --simulated-faults faults

A file of simulated faults has one fault a line: the card's index or UUID, a code, a message. Changes to
the file take effect while the driver runs.

    2 xid-79 GPU has fallen off the bus
"""


class ExitOption(StrEnum):
    keep = "keep"
    withdraw = "withdraw"


class KeepingOption(StrEnum):
    private = "private"
    host = "host"


def register(app: typer.Typer) -> None:
    app.command("driver", help=HELP, cls=CommandWithVendors)(driver)


def driver(
    *,
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The Node that this machine is.")] = "",
    kubeconfig: Kubeconfig = None,
    vendor: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Serve this vendor even while none of its cards is found: {VENDORS}. May be repeated; default: whatever "
            "is found."
        ),
    ] = None,
    machine: Annotated[
        str, typer.Option(help="Simulate this machine instead of reading hardware (hami-dra slices --list).")
    ] = "",
    simulated_faults: Annotated[
        Path | None, typer.Option(help="With --machine: a file that lists the cards that fail; see above.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="The controller's --mode. native: devices are ordered for kube-scheduler's first fit.")
    ] = Mode.exclusive,
    device_policy: Annotated[
        str,
        typer.Option(
            help="The order in native mode: spread, binpack, topology-aware, mutex, numa, or a comma list; first-fit: by index."
        ),
    ] = names.SPREAD,
    slots: Annotated[int, typer.Option(help="Allocations that may share a card: NVIDIA, MetaX.")] = 10,
    memory_scaling: Annotated[str, typer.Option(help="Memory offered / physical memory: NVIDIA.")] = "1",
    core_scaling: Annotated[str, typer.Option(help="Cores offered / physical cores: NVIDIA.")] = "1",
    card_slices: Annotated[
        int, typer.Option(help="Number of slices of a card that is allocated in slices: Enflame.")
    ] = 4,
    fence: Annotated[
        FenceOption, typer.Option(help="The fence taint in the slices: auto depends on what the cluster serves.")
    ] = FenceOption.auto,
    publish_beside_plugin: Annotated[
        bool,
        typer.Option("--publish-beside-plugin", help="Publish even if a device plugin offers the same cards."),
    ] = False,
    taint_effect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=EFFECT",
            help="Effect of a kind of failure on a card. Kinds: lost (NoExecute), xid, memory-error, unhealthy (NoSchedule). "
            "Effects: NoSchedule, NoExecute, None. May be repeated.",
        ),
    ] = None,
    discover_every: Annotated[str, typer.Option(help="Time between two discoveries of the hardware.")] = "5m",
    health_every: Annotated[str, typer.Option(help="Time between two health checks of the cards.")] = "10s",
    check_claims_every: Annotated[
        str,
        typer.Option(help="Time between two checks that prepared claims still exist in the API server (one GET each)."),
    ] = "5m",
    monitor_interval: Annotated[
        str,
        typer.Option(
            help="Time between two readings of the cards' sensors (memory, temperature, ...) for /metrics; 0: never."
        ),
    ] = "15s",
    recovery_time: Annotated[
        str,
        typer.Option(help="How long a fault must be absent until it is over; doubled each time it recurs."),
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
    root: Annotated[Path, typer.Option(help="kubelet's root directory.")] = Path("/var/lib/kubelet"),
    cdi_dir: Annotated[Path, typer.Option(help="Directory from which the container runtime reads CDI specs.")] = Path(
        "/var/run/cdi"
    ),
    instance_uid: Annotated[
        str,
        typer.Option(
            envvar="POD_UID", help="UID of the driver's pod: two may serve at the same time during an update."
        ),
    ] = "",
    library_folder: Annotated[
        str, typer.Option(envvar="HOOK_PATH", help="Directory on the node in which limiting libraries are installed.")
    ] = "/usr/local",
    library_version: Annotated[str, typer.Option(help="Version of the library, if several are installed.")] = "",
    library_log_level: Annotated[str, typer.Option(help="Log level of the library; empty: its own default.")] = "",
    core_limits: Annotated[
        bool,
        typer.Option("--core-limits/--no-core-limits", help="Whether shares of cores are enforced, or only counted."),
    ] = True,
    usage_cache: Annotated[
        KeepingOption,
        typer.Option(
            help="HAMi-core's usage file. private: in a small tmpfs of each container. host: in a folder of the node, which "
            "HAMi's monitor can read, and which a container can fill."
        ),
    ] = KeepingOption.private,
    usage_cache_size: Annotated[str, typer.Option(help="Size limit of that tmpfs.")] = "16Mi",
    lock_folder: Annotated[
        KeepingOption,
        typer.Option(
            help="HAMi-core's locks. private: in a small tmpfs of each container. host: in /tmp/vgpulock, which all containers of "
            "the node share: for versions of HAMi-core whose processes start one after the other."
        ),
    ] = KeepingOption.private,
    driver_root: Annotated[
        str,
        typer.Option(
            help="Directory on the node in which NVIDIA's driver is installed: /, or the folder of a driver container. "
            "hami-dra then mounts its libraries; default: NVIDIA's container runtime does."
        ),
    ] = "",
    driver_root_mount: Annotated[
        Path | None, typer.Option(help="The driver root as this program sees it; default: the same path.")
    ] = None,
    cdi_hook: Annotated[
        str, typer.Option(help="Path of nvidia-cdi-hook on the node; default: searched for if the driver root is /.")
    ] = "",
    library_runtime_class: Annotated[
        str,
        typer.Option(
            help="RuntimeClass that gives pods NVIDIA's libraries; default: the node's default runtime provides them."
        ),
    ] = "",
    imex_channels: Annotated[
        bool,
        typer.Option(
            "--imex-channels/--no-imex-channels", help="Give the node's IMEX channels to containers with whole GPUs."
        ),
    ] = True,
    kernel_root: Annotated[Path, typer.Option(help="Directory that contains the node's /sys and /proc.")] = Path("/"),
    device_folder: Annotated[str, typer.Option(help="Directory of the cards' device nodes on the node.")] = "/dev",
    host: HealthHost = "0.0.0.0",  # noqa: S104 (kubelet and Prometheus call from outside the pod)
    port: HealthPort = 8080,
    log_format: LogFormatOption = LogFormat.text,
    verbosity: Verbosity = 2,
) -> None:
    from controller.cli.service import run_service
    from controller.reconcile.observability import logs
    from hami_dra.api.containers import HostSettings, Keeping
    from hami_dra.driver.node.wiring import Wiring

    logs.configure(verbosity, logs.LogFormat(log_format.value))
    sharing = sharing_of(slots, memory_scaling, core_scaling, card_slices)
    settings = node_settings(
        node=node,
        instance=instance_uid,
        root=root,
        native=mode is Mode.native,
        ranking=device_ranking(device_policy),
        sharing=sharing,
        fence=fence.value,
        beside_plugin=publish_beside_plugin,
        effects=taint_effects(taint_effect or []),
        discover_every=seconds(discover_every, "--discover-every"),
        health_every=seconds(health_every, "--health-every"),
        check_claims_every=seconds(check_claims_every, "--check-claims-every"),
        monitor_interval=seconds(monitor_interval, "--monitor-interval"),
        recovery_time=seconds(recovery_time, "--recovery-time"),
        confirm_time=seconds(confirm_time, "--confirm-time"),
        on_exit=on_exit.value,
    )
    backends, demanded = chosen_backends(vendor or [], machine, node, simulated_faults, settings.plugins_dir)
    seen_root = seen_driver_root(driver_root, driver_root_mount) if not machine else None
    if seen_root is not None:
        from hami_dra.vendors.registry import PLUGINS

        for use in filter(None, (plugin.use_driver_root for plugin in PLUGINS)):
            use(seen_root)
    host_settings = HostSettings(
        library_folder=library_folder,
        library_version=library_version,
        log_level=library_log_level,
        core_limits=core_limits,
        usage_cache=Keeping(usage_cache.value),
        usage_cache_size=cache_size(usage_cache_size),
        lock_folder=Keeping(lock_folder.value),
        device_folder=device_folder,
        nodes_required=not machine,
        driver_root=driver_root,
        cdi_hook=cdi_hook,
        library_runtime_class=library_runtime_class,
        imex_channels=imex_channels,
        memory_scaling=sharing.memory_scaling,
    )
    wiring = Wiring(
        settings=settings,
        cdi_folder=cdi_dir,
        host=host_settings,
        kernel_root=kernel_root,
        driver_root=seen_root,
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

    from controller.reconcile.observability.exposition import Exposition
    from controller.reconcile.observability.server import serving
    from hami_dra.driver.node.metrics import DriverMetrics
    from hami_dra.driver.node.service import NodeDriver
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
        )
        rediscover: Callable[[], None] = driver.rediscover
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, rediscover)
        async with serving(*listen, render=Exposition(metrics).render, unready=driver.unready) as bound:
            logging.getLogger(__name__).info("health and metrics on port %d", bound)
            await driver.run()
    finally:
        await cluster.close()
