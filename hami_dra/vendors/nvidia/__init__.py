"""NVIDIA: cards shared by memory, cores and slots through HAMi-core, or taken whole."""

from hami_dra.vendors.nvidia.rules import refuse
from hami_dra.vendors.protocol import Ask, Cards, Codes, DriverProfile

DRIVER = "nvidia.hami.io"


class Nvidia:
    """Implements `hami_dra.vendors.protocol.Vendor`."""

    name = "nvidia"
    profile = DriverProfile(driver=DRIVER, default_shares=10)

    def refuse(self, cards: Cards, ask: Ask) -> Codes:
        return refuse(cards, ask)
