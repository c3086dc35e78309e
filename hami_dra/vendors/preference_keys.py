"""The preferences of one claim for every vendor. Created by
`controller.scoring.policy_resolution`, read wherever a vendor is called.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import Vendor


class RequestPreferences(Struct, frozen=True):
    """The preferences of one claim, by driver. Hashable; a vendor that is not named gets its defaults."""

    by_driver: tuple[tuple[str, Preferences], ...] = ()
    by_request: tuple[tuple[str, "RequestPreferences"], ...] = ()
    """Requests (`request`, or `request/subrequest`) with other preferences."""

    def for_request(self, name: str) -> "RequestPreferences":
        """Return the preferences of one request of the claim. `name`: spelt as in allocation results."""
        for request, request_preferences in self.by_request:
            if request == name:
                return request_preferences
        return RequestPreferences(self.by_driver) if self.by_request else self

    def each(self) -> Iterator["RequestPreferences"]:
        """Yield all that differ."""
        yield RequestPreferences(self.by_driver)
        yield from (request_preferences for _, request_preferences in self.by_request)

    def of(self, vendor: Vendor) -> Preferences:
        for driver, preferences in self.by_driver:
            if driver == vendor.profile.driver:
                return preferences
        return default_preferences(vendor)


NO_PREFERENCES: Final = RequestPreferences()


@lru_cache
def default_preferences(vendor: Vendor) -> Preferences:
    return vendor.preferences({})
