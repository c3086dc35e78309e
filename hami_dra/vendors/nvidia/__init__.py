"""NVIDIA: cards shared by memory, cores and slots through HAMi-core, or taken whole."""

from hami_dra.vendors.nvidia.rules import refuse
from hami_dra.vendors.protocol import Ask, Cards, Codes, DriverProfile, Vendor
from hami_dra.vendors.wishes import Wish

DRIVER = "nvidia.hami.io"


class Nvidia(Vendor):
    """The rules of `nvidia.hami.io`."""

    name = "nvidia"
    profile = DriverProfile(driver=DRIVER, default_shares=10, partition="profile")

    def refuse(self, cards: Cards, ask: Ask, wish: Wish) -> Codes:  # noqa: ARG002 (rules do not depend on it)
        return refuse(cards, ask)
