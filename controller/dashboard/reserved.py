"""What is kept for pods that do not run yet, by card: for all pages that say why a device is not free.

In: a `Source`. Out: `Reservation`s (`controller.views.overview`). Reads the pods that wait, once.
"""

from controller.dashboard.source import Source
from controller.views.overview import Reservation, reservations


def reserved(source: Source) -> tuple[Reservation, ...]:
    """Return the reservations for the pods that the source shows."""
    return reservations(
        source.inventory, source.pending_pods(), source.claim, source.pods_of, source.gang_key, held_for=source.held_for
    )
