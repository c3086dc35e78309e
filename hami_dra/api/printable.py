"""Texts that others wrote, made safe and short enough for a message to people. Pure."""

from collections.abc import Sequence
from typing import Final

_MIB: Final = 1 << 20
NOTE_LENGTH: Final = 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
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


def escaped(text: str, keep: str = "") -> str:
    r"""Return the text with escapes for what a terminal would obey or a line cannot hold.

    These are control characters, line breaks and characters that change the order of others; those
    in `keep` stay. Escapes are those of JSON, so that an escaped document says the same.

    >>> print(escaped("a\x1b[2J\nb\u202ec 😀", keep="\n"))
    a\u001b[2J
    b\u202ec 😀
    """
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() or char in keep else _escape(char) for char in text])


def _escape(char: str) -> str:
    if char == "\n":
        return "\\n"
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def event_note(text: str) -> str:
    """Return the text as the note of an event: in one line, of at most 1,024 bytes (the limit of
    events.k8s.io/v1: pkg/apis/core/validation/events.go).
    """
    note = escaped(text[:NOTE_LENGTH]).encode()
    if len(text) <= NOTE_LENGTH and len(note) <= NOTE_LENGTH:
        return note.decode()
    return note[: NOTE_LENGTH - 3].decode(errors="ignore") + "..."


def in_bytes(amount: int) -> str:
    """Return an amount of bytes as `16GiB`, `1.5GiB`: with at most one decimal place."""
    size, place = float(amount), 0
    while abs(size) >= 1024 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    return f"{size:.1f}".removesuffix(".0") + (_UNITS[place] if amount else "")


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


def some(values: Sequence[object], most: int = 4) -> str:
    """Return the first values, and how many there are besides.

    >>> some("abcdef"), some("ab")
    ('a, b, c, d and 2 more', 'a, b')
    """
    return ", ".join(map(str, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")


def listed(texts: Sequence[str], most: int) -> str:
    """Return the first of the texts in one line.

    >>> listed(["a", "b"], 3), listed("abcd", 3)
    ('a, b', 'a, b, c, ...')
    """
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
