"""What one claim wants of every vendor. Made by `controller.scoring.policies`, read wherever a vendor is asked."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hami_dra.vendors.protocol import Vendor
from hami_dra.vendors.wishes import Wish


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one claim wants of each vendor, by driver. Hashable; a vendor that is not named gets its default wish."""

    by_driver: tuple[tuple[str, Wish], ...] = ()

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
