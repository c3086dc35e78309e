"""Sizes of volumes, exact. Pure."""

from hami_dra.api.core import QuantityText
from hami_dra.api.quantity import InvalidQuantity, Quantity


def nanos(text: QuantityText | None) -> int:
    """Return the size in units of 10^-9 bytes; 0 if there is none.

    The API server admits no text that is not a quantity, files may contain one: that is 0, too.
    """
    if text is None:
        return 0
    try:
        return Quantity.parse(text).nanos
    except InvalidQuantity:
        return 0


def whole_bytes(text: QuantityText | None) -> int:
    """Return the size in bytes, rounded up; 0 if there is none."""
    if text is None:
        return 0
    try:
        return Quantity.parse(text).value()
    except InvalidQuantity:
        return 0
