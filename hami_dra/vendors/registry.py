"""All vendors, by the driver whose devices they know. A driver that is not here has no vendor rules."""

from hami_dra.vendors.nvidia import Nvidia
from hami_dra.vendors.protocol import Vendor

VENDORS: tuple[Vendor, ...] = (Nvidia(),)
_BY_DRIVER = {vendor.profile.driver: vendor for vendor in VENDORS}


def vendor_of(driver: str) -> Vendor | None:
    return _BY_DRIVER.get(driver)
