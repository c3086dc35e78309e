"""`hami-dra driver`: the half of hami-dra that runs on every node with accelerators."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controller.cli.durations import seconds
from controller.cli.errors import CommandError
from controller.cli.service_options import Kubeconfig, LogFormat, Mode
from hami_dra.api import names

if TYPE_CHECKING:
    from hami_dra.api.hardware import Machine
    from hami_dra.discovery.backend import Backend
    from hami_dra.driver.node.settings import DeviceRanking, Effect, NodeSettings
    from hami_dra.driver.node.wiring import Wiring
    from hami_dra.vendors.faults import FaultKind
    from hami_dra.vendors.publishing import Sharing

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


_LEAST_CACHE: Final = 4 << 20
_MOST_CACHE: Final = 1 << 30


class FenceOption(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


class ExitOption(StrEnum):
    keep = "keep"
    withdraw = "withdraw"


class KeepingOption(StrEnum):
    private = "private"
    host = "host"


def register(app: typer.Typer) -> None:
    app.command("driver", help=HELP)(driver)


def driver(
    *,
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The Node that this machine is.")] = "",
    kubeconfig: Kubeconfig = None,
    vendor: Annotated[
        list[str] | None,
        typer.Option(
            help="Serve this vendor even while none of its cards is found: nvidia, metax, kunlunxin, neuron, enflame. May be "
            "repeated; default: whatever is found."
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
    host: Annotated[str, typer.Option(help="Address of the health and metrics server.")] = "0.0.0.0",  # noqa: S104 (kubelet and Prometheus call from outside the pod)
    port: Annotated[int, typer.Option(help="Its port; 0 takes a free one.")] = 8080,
    log_format: Annotated[LogFormat, typer.Option(help="Log format.")] = LogFormat.text,
    verbosity: Annotated[
        int, typer.Option("-v", "--verbosity", help="Log level: 0 warnings only, 2 normal, 5 everything.")
    ] = 2,
) -> None:
    from controller.cli.service import run_service
    from controller.reconcile.observability import logs
    from hami_dra.api.containers import HostSettings, Keeping
    from hami_dra.driver.node.wiring import Wiring

    logs.configure(verbosity, logs.LogFormat(log_format.value))
    sharing = _sharing(slots, memory_scaling, core_scaling, card_slices)
    settings = _settings(
        node=node,
        instance=instance_uid,
        root=root,
        native=mode is Mode.native,
        ranking=_ranking(device_policy),
        sharing=sharing,
        fence=fence.value,
        beside_plugin=publish_beside_plugin,
        effects=_effects(taint_effect or []),
        discover_every=seconds(discover_every, "--discover-every"),
        health_every=seconds(health_every, "--health-every"),
        check_claims_every=seconds(check_claims_every, "--check-claims-every"),
        monitor_interval=seconds(monitor_interval, "--monitor-interval"),
        recovery_time=seconds(recovery_time, "--recovery-time"),
        confirm_time=seconds(confirm_time, "--confirm-time"),
        on_exit=on_exit.value,
    )
    backends, demanded = _backends(vendor or [], machine, node, simulated_faults, settings.plugins_dir)
    seen_root = _driver_root(driver_root, driver_root_mount) if not machine else None
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
        usage_cache_size=_cache_size(usage_cache_size),
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
        simulated=_machine(machine, node).cards if machine else None,
    )
    run_service(_serve(kubeconfig, settings, wiring, (backends, demanded), (host, port)))


def _settings(*, on_exit: str, **values: Any) -> "NodeSettings":
    from hami_dra.driver.node.settings import NodeSettings, OnExit
    from hami_dra.kube.protocol import ConfigError

    try:
        return NodeSettings(on_exit=OnExit(on_exit), **values)
    except ConfigError as error:
        raise CommandError(str(error)) from error


def _ranking(text: str) -> "DeviceRanking | None":
    from controller.scheduling.native_order import native_ranking
    from controller.scheduling.scoring.policies import DevicePolicy, InvalidPolicy, parse_device_policy

    if text == names.FIRST_FIT:
        return None
    try:
        return native_ranking(DevicePolicy(parse_device_policy(text, "--device-policy")))
    except InvalidPolicy as error:
        raise CommandError(str(error)) from error


def _sharing(slots: int, memory_scaling: str, core_scaling: str, slices: int) -> "Sharing":
    from fractions import Fraction

    from hami_dra.vendors.publishing import Sharing, Unpublishable

    scalings = {}
    for option, text in (("--memory-scaling", memory_scaling), ("--core-scaling", core_scaling)):
        try:
            scalings[option] = Fraction(text)
        except (ValueError, ZeroDivisionError):
            raise CommandError(f"{option}: {text!r} is not a number such as 1.5") from None
    try:
        return Sharing(slots, scalings["--memory-scaling"], scalings["--core-scaling"], slices)
    except Unpublishable as error:
        raise CommandError(str(error)) from error


def _driver_root(on_node: str, mount: Path | None) -> Path | None:
    """Return where this process sees it."""
    if not on_node:
        if mount is not None:
            raise CommandError("--driver-root-mount: say with --driver-root which folder of the node that is")
        return None
    if not on_node.startswith("/"):
        raise CommandError(f"--driver-root: {on_node!r} is not an absolute path")
    return mount or Path(on_node)


def _cache_size(text: str) -> int:
    from hami_dra.api.quantity import InvalidQuantity, Quantity

    try:
        size = Quantity.parse(text).value()
    except InvalidQuantity as error:
        raise CommandError(f"--usage-cache-size: {error}") from error
    if not _LEAST_CACHE <= size <= _MOST_CACHE:
        raise CommandError(f"--usage-cache-size: {text} is not between 4Mi, which HAMi-core's file needs, and 1Gi")
    return size


def _effects(options: Sequence[str]) -> "Mapping[FaultKind, Effect]":
    from typing import get_args

    from hami_dra.driver.node.settings import EFFECTS, Effect
    from hami_dra.vendors.faults import FaultKind

    kinds = {kind.value: kind for kind in FaultKind}
    effects: dict[str, Effect] = {effect: effect for effect in get_args(Effect)}
    found = dict(EFFECTS)
    for option in options:
        kind, _, effect = option.partition("=")
        if kind not in kinds or effect not in effects:
            raise CommandError(
                f"--taint-effect: {option!r} is not KIND=EFFECT with a kind of {', '.join(kinds)} and an effect of "
                f"{', '.join(effects)}"
            )
        found[kinds[kind]] = effects[effect]
    return found


def _backends(
    vendors: Sequence[str], machine_name: str, node: str, faults: Path | None, plugins_dir: Path
) -> "tuple[list[Backend], frozenset[str]]":
    """Return the back ends, and the vendors that are served even if no card is found."""
    from hami_dra.vendors.registry import plugin_names, plugin_of

    for name in vendors:
        if name not in plugin_names():
            raise CommandError(f"--vendor: {name!r} is none of {', '.join(plugin_names())}")
    if machine_name:
        return _simulated(vendors, machine_name, node, faults)
    if faults is not None:
        raise CommandError("--simulated-faults: works with --machine only")
    chosen = [plugin_of(name) for name in vendors or plugin_names()]
    return [plugin.backend(plugins_dir / plugin.driver) for plugin in chosen], frozenset(vendors)


def _simulated(
    vendors: Sequence[str], machine_name: str, node: str, faults: Path | None
) -> "tuple[list[Backend], frozenset[str]]":
    from hami_dra.driver.node.simulated import SimulatedBackend

    found = _machine(machine_name, node)
    there = dict.fromkeys(card.vendor for card in found.cards)
    for name in vendors:
        if name not in there:
            raise CommandError(f"--vendor: {machine_name} has no cards of {name}; it has those of {', '.join(there)}")
    chosen = list(vendors) or list(there)
    return [
        SimulatedBackend(name, [card for card in found.cards if card.vendor == name], faults) for name in chosen
    ], frozenset(chosen)


def _machine(name: str, node: str) -> "Machine":
    from hami_dra.driver.simulated import UnknownMachine, machine

    try:
        return machine(name, node)
    except UnknownMachine as error:
        raise CommandError(f"--machine: {error}") from error


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
