"""Usage on top of the ledger: what a search has chosen so far, and takes back when it turns round.

Made by `solve`, shown to choosers. In: allocations one at a time, released in reverse order. Must not change the ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.inventory.model import Device, DeviceId, Usage


@dataclass(slots=True)
class Delta:
    """What the search adds to one device."""

    device: Device
    exclusive: bool = False
    shares: int = 0
    consumed: dict[str, int] = field(default_factory=dict)
    """Capacity name → amount in whole units."""


class Trial(Usage):
    """The ledger plus the allocations tried so far, those of earlier claims and requests of the same pod included."""

    added: Mapping[DeviceId, Delta]
    """Only what the search added, without admin access (it consumes nothing). For scoring to add to its columns."""

    def in_use(self, device: DeviceId) -> bool:
        raise NotImplementedError

    def shares(self, device: DeviceId) -> int:
        raise NotImplementedError

    def consumed(self, device: DeviceId) -> Mapping[str, int]:
        raise NotImplementedError
