"""What an operator chooses for Acme's cards."""

from hami_dra.api.options import VendorOption, size

RESERVED = VendorOption(
    name="acme-reserved",
    field="acmeReserved",
    default="0",
    read=size("0", "1Gi"),
    help="Memory of each card that is not published.",
)
