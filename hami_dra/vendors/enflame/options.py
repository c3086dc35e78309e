"""What an operator chooses for Enflame's cards."""

from typing import Final

from hami_dra.api.options import VendorOption, whole
from hami_dra.vendors.publishing import MAX_PARTS

CARD_SLICES: Final = VendorOption(
    name="card-slices",
    field="slices",
    default=4,
    read=whole(1, MAX_PARTS),
    help="Number of slices of a card, 1 to 10; HAMi's usual factors are 3, 4 and 6.",
)
