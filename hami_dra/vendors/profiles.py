"""How the devices of a DRA driver are read for scoring: which published names play which role.

Called by the inventory for every driver it meets. Our own drivers are read as their vendors say; foreign drivers that can be
managed (`--manage`) are listed here with the names that they publish. A driver that is not listed is read by the names of
ours, which costs nothing where it does not publish them.
"""

from functools import lru_cache
from typing import Final

from hami_dra.vendors.protocol import DriverProfile
from hami_dra.vendors.registry import vendor_of

HAMI_SLOTS: Final = 10
"""HAMi's deviceSplitCount: how many allocations share a card that publishes no limit of its own."""

FOREIGN: Final[tuple[DriverProfile, ...]] = (
    # kubernetes-sigs/dra-driver-nvidia-gpu: attributes in its own domain; memory, with the gate ConsumableShares also shares
    DriverProfile(
        driver="gpu.nvidia.com",
        uuid="uuid",
        product="productName",
        index=None,
        link_group=None,
        links=None,
        distance=None,
        cores=None,
        default_shares=HAMI_SLOTS,
    ),
    # AWS' Neuron driver: whole devices without capacities, named neurondevice<N>
    DriverProfile(
        driver="neuron.aws.com",
        uuid=None,
        product="instanceType",
        index=None,
        link_group="resource.aws.com/devicegroup4_id",
        links=None,
        distance=None,
        memory=None,
        cores=None,
        shares=None,
    ),
    # Project-HAMi/k8s-dra-driver, the driver behind HAMi-DRA's webhook
    DriverProfile(
        driver="hami-core-gpu.project-hami.io",
        uuid="uuid",
        product="productName",
        index="minor",
        link_group=None,
        links=None,
        distance=None,
        shares=None,
        default_shares=HAMI_SLOTS,
    ),
)
_BY_DRIVER: Final = {profile.driver: profile for profile in FOREIGN}


@lru_cache(maxsize=256)
def profile_of(driver: str) -> DriverProfile:
    """A driver of nobody we know is read by the names of ours."""
    vendor = vendor_of(driver)
    known = vendor.profile if vendor is not None else _BY_DRIVER.get(driver)
    return known or DriverProfile(driver=driver, default_shares=HAMI_SLOTS)
