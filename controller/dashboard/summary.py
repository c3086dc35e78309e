"""The first row of the overview: is anything wrong? Pure."""

from collections.abc import Iterable

from msgspec import Struct

from controller.views.overview import Packing


class Summary(Struct, frozen=True):
    pending: int
    """Number of pods."""
    oldest: str
    """Creation time of the oldest, RFC 3339; empty: none waits."""
    devices: int
    free_devices: int
    """Whole devices that a pod could have now."""
    usable_devices: int
    allocated: float
    """Share of the capacity of usable devices, 0.0 to 1.0."""

    @property
    def unhealthy(self) -> int:
        """Number of devices that are faulty, cordoned, or on a node that takes no pods."""
        return self.devices - self.usable_devices


def summary(packing: Iterable[Packing], waiting: tuple[int, str]) -> Summary:
    """Return the summary. `waiting`: number of pods that wait, creation time of the oldest."""
    packed = list(packing)
    usable = sum(each.usable_cards for each in packed)
    free = sum(each.free_capacity for each in packed)
    return Summary(
        pending=waiting[0],
        oldest=waiting[1],
        devices=sum(each.cards for each in packed),
        free_devices=sum(each.free_cards for each in packed),
        usable_devices=usable,
        allocated=1 - free / usable if usable else 0.0,
    )


def allocated_share(packing: Packing) -> float:
    """Return the share of the capacity of a driver's usable devices that is allocated, 0.0 to 1.0."""
    return 1 - packing.free_capacity / packing.usable_cards if packing.usable_cards else 0.0
