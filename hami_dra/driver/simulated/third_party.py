"""Devices as other projects' drivers publish them, for `--manage` and for the compatibility with
HAMi-DRA.

Called by the fleet and by tests. In: a machine. Out: devices as plain JSON, by the imitated driver.
Pure. The shapes are with the vendor of the cards (`VendorPlugin.imitations`).
"""

from typing import Any, Final

from hami_dra.api.hardware import Machine
from hami_dra.vendors.plugin import Imitation
from hami_dra.vendors.registry import PLUGINS

Json = dict[str, Any]


class NotPublishedBy(ValueError):
    """This driver does not publish such cards; the message says which machine and which driver."""


def foreign_devices(driver: str, machine: Machine) -> list[Json]:
    """Return the devices that `driver` would publish on the machine. Raises NotPublishedBy."""
    if driver not in DRIVERS:
        raise NotPublishedBy(f"there is no imitation of driver {driver!r}; choose one of: {', '.join(DRIVERS)}")
    vendor, publish = DRIVERS[driver]
    cards = [card for card in machine.cards if card.vendor == vendor]
    if not cards:
        raise NotPublishedBy(f"{machine.instance_type} has no cards that {driver} publishes (vendor {vendor})")
    return publish(machine, cards)


DRIVERS: Final[dict[str, tuple[str, Imitation]]] = {
    driver: (plugin.name, publish) for plugin in PLUGINS for driver, publish in plugin.imitations.items()
}
"""Driver → the vendor of its cards, and the function that creates the devices."""
