"""Enflame: whole GCUs, or slices of them (vGCU)."""

from hami_dra.vendors.protocol import DriverProfile, Vendor

DRIVER = "enflame.hami.io"


class Enflame(Vendor):
    """The rules of `enflame.hami.io`."""

    name = "enflame"
    profile = DriverProfile(driver=DRIVER)
