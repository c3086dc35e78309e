"""What the options of `hami-dra driver` mean: ranking, driver root, back ends. Errors name the option."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.errors import CommandError
from hami_dra.api import names

if TYPE_CHECKING:
    from hami_dra.api.hardware import Machine
    from hami_dra.api.options import VendorSettings
    from hami_dra.discovery.backend import Backend
    from hami_dra.driver.node.settings import DeviceRanking


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
