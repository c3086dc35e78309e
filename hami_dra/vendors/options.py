"""Options that several vendors read; a vendor's own are in its folder. Listed in `VendorPlugin.options`."""

from typing import Final

from hami_dra.api.options import VendorOption, absolute_path, whole

SLOTS: Final = VendorOption(
    name="slots",
    field="slots",
    default=10,
    read=whole(1, 1_000_000),
    help="Allocations that may share a card (HAMi's deviceSplitCount).",
)
DRIVER_ROOT: Final = VendorOption(
    name="driver-root",
    default="",
    read=absolute_path,
    help="Directory on the node in which the vendor's driver is installed: /, or the folder of a driver container. "
    "hami-dra then mounts its libraries; default: the vendor's container runtime does.",
)
DRIVER_ROOT_MOUNT: Final = VendorOption(
    name="driver-root-mount",
    default="",
    read=absolute_path,
    help="The driver root as this program sees it; default: the same path.",
)
