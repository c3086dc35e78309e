"""What is kept for pods that do not run yet, by card: for all pages that say why a device is not free.

In: a `Source`. Out: `Reservation`s (`controller.views.overview`). Reads the pods that wait, once.
"""

from collections.abc import Iterable, Mapping

from controller.dashboard.source import Source
from controller.inventory import DeviceId
from controller.views.overview import NO_CARD, CardTable, Reservation, reservations


def reserved(source: Source) -> tuple[Reservation, ...]:
    """Return the reservations for the pods that the source shows."""
    return reservations(
        source.inventory, source.pending_pods(), source.claim, source.pods_of, source.gang_key, held_for=source.held_for
    )


def by_card(found: Iterable[Reservation], table: CardTable) -> Mapping[str, tuple[Reservation, ...]]:
    """Return the reservations by `driver/pool/device` of the card; parts count as it. `table`: refreshed."""
    cards: dict[str, dict[Reservation, None]] = {}
    for each in found:
        for device in each.devices:
            cards.setdefault(_card_of(device, table), {})[each] = None
    return {card: tuple(some) for card, some in cards.items()}


def device_id(text: str) -> DeviceId:
    """Return the device that `driver/pool/device` names; a pool may contain slashes."""
    driver, _, rest = text.partition("/")
    pool, _, device = rest.rpartition("/")
    return DeviceId(driver, pool, device)


def _card_of(device: str, table: CardTable) -> str:
    devices = table.inventory.devices
    row = devices.row_of(device_id(device))
    parent = int(table.parent[row]) if row >= 0 else NO_CARD
    return device if parent == NO_CARD else str(devices.device(parent).id)
