"""What Acme's cards refuse: nothing beyond their capacities."""

from hami_dra.vendors.protocol import DriverProfile, Vendor

DRIVER = "acme.example.com"


class Acme(Vendor):
    """The rules of `acme.example.com`."""

    name = "acme"
    profile = DriverProfile(driver=DRIVER, default_shares=4)

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-acme-{index}",)
