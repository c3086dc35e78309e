"""What one claim wants of every vendor. Made by `controller.scheduling.scoring.policy_resolution`, read wherever a vendor is asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hami_dra.vendors.preferences import Wish
from hami_dra.vendors.protocol import Vendor


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one claim wants of each vendor, by driver. Hashable; a vendor that is not named gets its default wish."""

    by_driver: tuple[tuple[str, Wish], ...] = ()
    by_request: tuple[tuple[str, "Wishes"], ...] = ()
    """Requests (`request`, or `request/subrequest`) that want something else."""

    def for_request(self, name: str) -> "Wishes":
        """What one request of the claim wants. `name`: as allocation results spell it."""
        for request, wishes in self.by_request:
            if request == name:
                return wishes
        return Wishes(self.by_driver) if self.by_request else self

    def each(self) -> Iterator["Wishes"]:
        """All that differ."""
        yield Wishes(self.by_driver)
        yield from (wishes for _, wishes in self.by_request)

    def of(self, vendor: Vendor) -> Wish:
        for driver, wish in self.by_driver:
            if driver == vendor.profile.driver:
                return wish
        return default_wish(vendor)


NO_WISHES: Final = Wishes()


@lru_cache
def default_wish(vendor: Vendor) -> Wish:
    """Where no annotation says anything."""
    return vendor.wish({})
