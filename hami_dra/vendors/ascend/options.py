"""What an operator chooses for Ascend's NPUs."""

from typing import Final

from hami_dra.api.options import VendorOption, switch

REMOVE_IDLE_VNPUS: Final = VendorOption(
    name="remove-idle-vnpus",
    default=True,
    read=switch,
    help="Whether vNPUs that a container runtime left behind are removed. Off: where something else makes vNPUs on the same cards.",
)
