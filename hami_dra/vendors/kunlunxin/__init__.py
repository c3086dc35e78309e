"""Kunlunxin: whole XPUs, or halves and quarters of them (vXPU), in two wings."""

from hami_dra.vendors.protocol import DriverProfile, Vendor

DRIVER = "kunlunxin.hami.io"


class Kunlunxin(Vendor):
    """The rules of `kunlunxin.hami.io`."""

    name = "kunlunxin"
    profile = DriverProfile(driver=DRIVER)
