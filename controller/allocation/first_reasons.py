"""Columns of reason codes, laid over one another: which of two reasons a card is refused for.

Called by `prefilter`. HAMi names the first check that fails; the numbers of the codes
(`hami_dra.vendors.device_codes`) are in its order of checks. Pure, on whole columns.
"""

from typing import Final

import numpy as np

from controller.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED
from hami_dra.api.arrays import Codes, Ints
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import NUMBER

REPLACEABLE: Final = np.zeros(256, dtype=np.bool_)
"""By number of a reason: what is found afterwards may come before it. Amounts, and the uuid, which
HAMi compares after the class and the QoS of MetaX' tasks.
"""
REPLACEABLE[
    [
        NUMBER[device_codes.CARD_UUID_MISMATCH],
        NUMBER[device_codes.CARD_TIME_SLICING_EXHAUSTED],
        NUMBER[device_codes.CARD_INSUFFICIENT_MEMORY],
        NUMBER[device_codes.CARD_INSUFFICIENT_CORE],
    ]
] = True
NEVER: Final = np.zeros(256, dtype=np.bool_)
"""By number of a reason: the card does not fit even if it is idle."""
NEVER[
    [
        NOT_OF_CLASS,
        UNJUDGED,
        *(
            NUMBER[code]
            for code in (
                device_codes.CARD_TYPE_MISMATCH,
                device_codes.CARD_UUID_MISMATCH,
                device_codes.CARD_NOT_HEALTH,
                device_codes.CARD_CORDONED,
                device_codes.CUSTOM_FILTER_RULE,
            )
        ),
    ]
] = True


def earliest(codes: Codes, found: Codes | Ints) -> None:
    """Give rows without a reason the one that was found, also rows whose reason comes later and is
    REPLACEABLE.

    >>> amounts, slots = NUMBER[device_codes.CARD_INSUFFICIENT_MEMORY], NUMBER[device_codes.CARD_TIME_SLICING_EXHAUSTED]
    >>> codes = np.array([0, amounts, NUMBER[device_codes.CARD_NOT_HEALTH], amounts], dtype=np.uint8)
    >>> earliest(codes, np.array([slots, slots, slots, 0], dtype=np.uint8))
    >>> codes.tolist() == [slots, slots, NUMBER[device_codes.CARD_NOT_HEALTH], amounts]
    True
    """
    earlier = (found > 0) & ((codes == 0) | (REPLACEABLE[codes] & (found < codes)))
    codes[earlier] = found[earlier]


def where(codes: Codes, later: Codes | Ints) -> None:
    """Give rows without a reason the later one.

    >>> codes = np.array([0, 3, 0], dtype=np.uint8)
    >>> where(codes, np.array([5, 5, 0], dtype=np.uint8))
    >>> codes.tolist()      # the first reason stays
    [5, 3, 0]
    """
    open_rows = codes == 0
    codes[open_rows] = later[open_rows]
