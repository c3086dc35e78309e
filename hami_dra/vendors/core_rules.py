"""What a request for cores means beyond the amount, on cards that several requests share (HAMi D/*/device.go, Fit).

Called by the vendors' `refuse`. In: columns of cards and the requested amounts. Out: numbers of
reasons. Pure.
"""

import numpy as np

from hami_dra.api.arrays import Codes
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import NUMBER
from hami_dra.vendors.protocol import CardRequest, Cards

WHOLE = 100
"""Percent of a card's cores; a card whose cores are scaled above it is never exclusive (HAMi: Totalcore == 100)."""


def refuse(cards: Cards, ask: CardRequest) -> Codes:
    """Return per card 0 or the number of the reason.

    - All 100 percent of the cores means an exclusive card: refused while anything else is on it.
    - A request for no cores means no core limit: refused only if all cores are granted to others.
    """
    codes = np.zeros(cards.index.shape, dtype=np.uint8)
    unlimited = (ask.cores == 0) & (cards.cores_total > 0) & (cards.cores_used >= cards.cores_total)
    codes[unlimited] = NUMBER[device_codes.CARD_COMPUTE_UNITS_EXHAUSTED]
    exclusive = (ask.cores == WHOLE) & (cards.cores_total == WHOLE) & (cards.slots_used > 0)
    codes[exclusive] = NUMBER[device_codes.EXCLUSIVE_CONFLICT]
    return codes
