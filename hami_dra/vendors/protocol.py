"""What a vendor module says to the rest, and how any DRA driver's devices are read (the driver profile).

Nothing outside `hami_dra.vendors` names a vendor. A rule applies by the driver of the device, however it was asked for.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hami_dra.api import names

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class DriverProfile:
    """Which published names play which role for scoring. A role the driver does not publish is None.

    Attribute names are looked up as the allocator does: in full first, then bare when the domain is the driver's.
    """

    driver: str
    uuid: str | None = names.ATTR_UUID
    product: str | None = names.ATTR_PRODUCT
    index: str | None = names.ATTR_INDEX
    link_group: str | None = names.ATTR_LINK_GROUP
    links: str | None = names.ATTR_LINKS
    distance: str | None = names.ATTR_DISTANCE
    numa: str | None = names.ATTR_NUMA_NODE
    memory: str | None = names.CAP_MEMORY
    cores: str | None = names.CAP_CORES
    shares: str | None = names.CAP_SHARES
    default_shares: int = 1
    """Slots of a shared device that publishes no `shares` capacity (an exclusive device always has 1)."""


@dataclass(slots=True)
class Cards:
    """Some rows of the device columns, by role. All arrays have shape (n,), int64; memory in the driver's unit.

    Used amounts are before the request at hand. A role that the driver does not publish has total 0.
    """

    index: Ints
    numa: Ints
    slots_total: Ints
    slots_used: Ints
    cores_total: Ints
    cores_used: Ints
    memory_total: Ints
    memory_used: Ints

    def take(self, positions: Positions) -> "Cards":
        """Copies of some rows."""
        return Cards(
            index=self.index[positions],
            numa=self.numa[positions],
            slots_total=self.slots_total[positions],
            slots_used=self.slots_used[positions],
            cores_total=self.cores_total[positions],
            cores_used=self.cores_used[positions],
            memory_total=self.memory_total[positions],
            memory_used=self.memory_used[positions],
        )


@dataclass(slots=True)
class Ask:
    """What one request would take of each card of `Cards`: arrays of shape (n,), int64, already rounded per card."""

    slots: Ints
    cores: Ints
    memory: Ints

    def take(self, positions: Positions) -> "Ask":
        """Copies of some rows."""
        return Ask(slots=self.slots[positions], cores=self.cores[positions], memory=self.memory[positions])


class Vendor(Protocol):
    """One accelerator vendor."""

    name: str
    profile: DriverProfile

    def refuse(self, cards: Cards, ask: Ask) -> Codes:
        """Per card 0, or the number of the reason (`hami_dra.vendors.reasons`) why this vendor's rules refuse it.

        Only refuses: capacity, selectors and taints are the allocator's business.
        """
