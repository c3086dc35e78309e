"""Run the node driver: it finds the devices of this node, publishes them, monitors their health and serves kubelet.

One process serves all vendors whose devices it finds, or the named ones. SIGHUP makes it read the
hardware again. /healthz, /readyz and /metrics are on the port.

Examples:
    hami-dra driver --node gpu-node-1
    hami-dra driver --node gpu-node-1 --vendor nvidia --slots 4
    hami-dra driver --node gpu-node-1 --taint-effect lost=NoSchedule
    hami-dra driver --node gpu-node-1 --mode native --device-policy binpack
    hami-dra driver --node n1 --machine dgx-h100 --simulated-faults faults

A file of simulated faults has one fault a line: the device's index or UUID, a code, a message.
Changes to the file take effect while the driver runs.

    2 xid-79 GPU has fallen off the bus
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.vendor_options import VENDORS, DriverCommand, vendor_settings
from controller.settings.common import Health, Kubeconfig, Log
from hami_dra.api import names
from hami_dra.api.flags import ABSOLUTE_PATH, Option
from hami_dra.driver.node.settings import NodeSettings

if TYPE_CHECKING:
    from hami_dra.api.hardware import Machine
    from hami_dra.api.options import VendorSettings
    from hami_dra.discovery.backend import Backend
    from hami_dra.driver.node.settings import DeviceRanking
    from hami_dra.driver.node.wiring import Wiring


def device_ranking(text: str) -> "DeviceRanking | None":
    from controller.scoring import DevicePolicy, native_ranking, parse_device_policy

    if text == names.FIRST_FIT:
        return None
    return native_ranking(DevicePolicy(parse_device_policy(text, "--device-policy")))


def seen_driver_root(options: "VendorSettings") -> Path | None:
    """Return where this process sees it, and let the vendors look for their libraries there."""
    from hami_dra.vendors.options import DRIVER_ROOT, DRIVER_ROOT_MOUNT
    from hami_dra.vendors.registry import PLUGINS

    on_node, mount = options[DRIVER_ROOT], options[DRIVER_ROOT_MOUNT]
    if not on_node:
        if mount:
            raise CommandError("--driver-root-mount: say with --driver-root which folder of the node that is")
        return None
    seen = Path(mount or on_node)
    for use in filter(None, (plugin.use_driver_root for plugin in PLUGINS)):
        use(seen)
    return seen


def chosen_backends(
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

    found = simulated_machine(machine_name, node)
    there = dict.fromkeys(card.vendor for card in found.cards)
    for name in vendors:
        if name not in there:
            raise CommandError(f"--vendor: {machine_name} has no devices of {name}; it has those of {', '.join(there)}")
    chosen = list(vendors) or list(there)
    return [
        SimulatedBackend(name, [card for card in found.cards if card.vendor == name], faults) for name in chosen
    ], frozenset(chosen)


def simulated_machine(name: str, node: str) -> "Machine":
    from hami_dra.driver.simulated import UnknownMachine, machine

    try:
        return machine(name, node)
    except UnknownMachine as error:
        raise CommandError(f"--machine: {error}") from error


COMMAND = DriverCommand


def driver(
    context: typer.Context,
    *,
    node: NodeSettings,
    kubeconfig: Kubeconfig = None,
    vendor: Annotated[
        tuple[str, ...],
        Option(
            f"Serve this vendor even while none of its devices is found: {VENDORS}. May be repeated; default: all "
            "vendors whose devices are found."
        ),
    ] = (),
    machine: Annotated[str, Option("Simulate this machine instead of reading hardware (hami-dra slices --list).")] = "",
    simulated_faults: Annotated[
        Path | None, Option("With --machine: a file that lists the devices that fail; see above.")
    ] = None,
    device_policy: Annotated[
        str,
        Option(
            "The order in native mode: spread, binpack, topology-aware, mutex, numa, or a comma-separated list; first-fit: by index."
        ),
    ] = names.SPREAD,
    cdi_dir: Annotated[
        Path, Option("Directory from which the container runtime reads CDI specs.", ABSOLUTE_PATH)
    ] = Path("/var/run/cdi"),
    kernel_root: Annotated[Path, Option("Directory that contains the node's /sys and /proc.", ABSOLUTE_PATH)] = Path(
        "/"
    ),
    device_folder: Annotated[
        str, Option("Directory of the hardware's device files on the node.", ABSOLUTE_PATH)
    ] = "/dev",
    health: Health,
    log: Log,
) -> None:
    from controller.cli.service import run_service
    from hami_dra import logs
    from hami_dra.api.containers import HostSettings
    from hami_dra.driver.node.wiring import Wiring

    logs.configure(log.verbosity, logs.LogFormat(log.log_format))
    options = vendor_settings(context)
    settings = replace(node, options=options, ranking=device_ranking(device_policy))
    backends, demanded = chosen_backends(vendor, machine, node.node, simulated_faults, settings.plugins_dir)
    wiring = Wiring(
        settings=settings,
        cdi_folder=cdi_dir,
        host=HostSettings(device_folder=device_folder, nodes_required=not machine, options=options),
        kernel_root=kernel_root,
        driver_root=None if machine else seen_driver_root(options),
        simulated=simulated_machine(machine, node.node).cards if machine else None,
    )
    run_service(_serve(kubeconfig, wiring, backends, demanded, health))


async def _serve(
    kubeconfig: str | None, wiring: "Wiring", backends: "list[Backend]", demanded: frozenset[str], health: Health
) -> None:
    import asyncio
    import logging
    import signal

    from hami_dra.driver.node.metrics import DriverMetrics
    from hami_dra.driver.node.service import NodeDriver
    from hami_dra.httpserver import Exposition, serving

    metrics = DriverMetrics()
    async with Connection(kubeconfig).open() as cluster:
        driver = NodeDriver(
            cluster,
            wiring.settings,
            backends,
            wiring.plugins(cluster, metrics),
            demanded=demanded,
            metrics=metrics,
            sampler=wiring.sampler,
            usage=wiring.usage,
        )
        rediscover: Callable[[], None] = driver.rediscover
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, rediscover)
        render = Exposition(metrics).render
        async with serving(health.host, health.port, render=render, unready=driver.unready) as bound:
            logging.getLogger(__name__).info("health and metrics on port %d", bound)
            await driver.run()
