"""Driver profiles: the roles of a DRA driver's published names in scoring.

Called by the inventory once per ResourceSlice, and by the commands that show published devices.
hami-dra's own drivers are read as their vendors define. For another driver that is managed
(`--manage`) the profile comes from a file (`--manage-profile`, `driver_profile_file`) or from the
list below. A driver without either is read by hami-dra's own attribute names, if it publishes them.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from hami_dra.vendors.protocol import DriverProfile
from hami_dra.vendors.registry import vendor_of

HAMI_SLOTS: Final = 10
"""HAMi's deviceSplitCount: the number of allocations that share a card without a published limit."""

FOREIGN: Final[tuple[DriverProfile, ...]] = (
    # kubernetes-sigs/dra-driver-nvidia-gpu: attributes in its own domain; memory, with the gate
    # ConsumableShares also shares
    DriverProfile(
        driver="gpu.nvidia.com", uuid="uuid", product="productName", index=None, link_group=None, links=None,
        distance=None, cores=None, default_shares=HAMI_SLOTS,
    ),
    # AWS' Neuron driver: whole devices without capacities, named neurondevice<N>
    DriverProfile(
        driver="neuron.aws.com", uuid=None, product="instanceType", index=None,
        link_group="resource.aws.com/devicegroup4_id", links=None, distance=None, memory=None, cores=None,
        shares=None,
    ),
    # Project-HAMi/k8s-dra-driver, the driver behind HAMi-DRA's webhook
    DriverProfile(
        driver="hami-core-gpu.project-hami.io", uuid="uuid", product="productName", index="minor", link_group=None,
        links=None, distance=None, shares=None, default_shares=HAMI_SLOTS,
    ),
)  # fmt: skip
_BY_DRIVER: Final = {profile.driver: profile for profile in FOREIGN}


class DriverProfiles(Struct, frozen=True):
    """The profiles of all drivers: those from files first, then the built-in ones."""

    given: Mapping[str, DriverProfile] = field(default_factory=lambda: MappingProxyType({}))
    """Driver → its profile from a file."""

    def of(self, driver: str) -> DriverProfile:
        return self.given.get(driver) or profile_of(driver)


BUILT_IN_PROFILES: Final = DriverProfiles()


@lru_cache(maxsize=256)
def profile_of(driver: str) -> DriverProfile:
    """Return the built-in profile; unknown drivers are read by hami-dra's own attribute names."""
    vendor = vendor_of(driver)
    known = vendor.profile if vendor is not None else _BY_DRIVER.get(driver)
    return known or DriverProfile(driver=driver, default_shares=HAMI_SLOTS)
