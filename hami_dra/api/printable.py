"""Texts that others wrote, made safe and short enough for a message to people. Pure."""

from typing import Final

_MIB: Final = 1 << 20
MOST: Final = 120
"""Characters of one name or value in a message."""


def printable(text: str, most: int = MOST) -> str:
    r"""Return the text in one line, without characters that a terminal would obey, and cut.

    >>> printable("gpu\x1b[31m\n= a100")
    'gpu?[31m = a100'
    >>> printable("x" * 200, 10)
    'xxxxxxx...'
    """
    if len(text) > 8 * most:
        text = text[: 8 * most]
    clean = "".join([char if char.isprintable() else "?" for char in " ".join(text.split())])
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def mebibytes(amount: int) -> str:
    """Return an amount of bytes in MiB, never in powers of ten.

    >>> mebibytes(80000 << 20), mebibytes(16 << 40), mebibytes((1 << 20) + (1 << 19))
    ('80000 MiB', '16777216 MiB', '1.5 MiB')
    """
    whole, rest = divmod(amount, _MIB)
    return f"{amount / _MIB:.1f} MiB" if rest else f"{whole} MiB"


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "node"), counted(3, "whole device")
    ('1 node', '3 whole devices')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
