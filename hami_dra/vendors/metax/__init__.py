"""MetaX: whole cards, or parts of them (sGPU), joined by MetaXLink zones."""

from hami_dra.vendors.protocol import DriverProfile, Vendor

DRIVER = "metax.hami.io"


class Metax(Vendor):
    """The rules of `metax.hami.io`."""

    name = "metax"
    profile = DriverProfile(driver=DRIVER)
