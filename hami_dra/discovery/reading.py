"""Words of the vendors' tools as values. Pure; all raise Unexpected with the expected form and the actual text."""

import re
from typing import Final

from hami_dra.discovery.errors import Unexpected

MAX_BYTES: Final = 1 << 50
"""A petabyte: beyond any card, so a larger number is not an amount of memory."""
MAX_INDEX: Final = 4095

_NOTHING: Final = {
    "", "-", "n/a", "na", "none", "null", "unknown", "not supported", "invalid argument", "unknown error",
}  # fmt: skip
UNITS: Final = {"b": 0, "kib": 10, "kb": 10, "mib": 20, "mb": 20, "gib": 30, "gb": 30}
"""Unit → power of two. The tools write MB and GB and mean binary ones (neuron-ls: 96 GB for 96 x 2^30)."""
AMOUNT: Final = re.compile(r"([0-9]{1,18})\s*([A-Za-z]*)")
_WHOLE: Final = re.compile(r"[0-9]{1,18}")
_BUS_ID: Final = re.compile(r"(?:([0-9a-fA-F]{2,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_IDENTITY: Final = re.compile(r"[!-~]{1,64}")
_MAX_NAME: Final = 128


def said(text: str | None) -> str:
    """Return the text, or empty if a tool reports an unknown value: `N/A`, `[Not Supported]`, `Invalid Argument`."""
    clean = (text or "").strip()
    return "" if clean.strip("[]").strip().lower() in _NOTHING else clean


def whole(text: str, *, at_most: int, what: str = "a whole number") -> int:
    if not _WHOLE.fullmatch(text.strip()) or int(text) > at_most:
        raise Unexpected(f"{what} from 0 to {at_most}", text)
    return int(text)


def memory(text: str, unit: str = "") -> int:
    """Return `65536 MiB`, `98304MiB`, `96 GB`, or a bare number in `unit` as bytes, more than 0."""
    found = AMOUNT.fullmatch(text.strip())
    suffix = ((found[2] or unit) if found else "").lower()
    if not found or suffix not in UNITS or not 0 < int(found[1]) << UNITS[suffix] <= MAX_BYTES:
        raise Unexpected("an amount of memory such as 65536 MiB", text)
    return int(found[1]) << UNITS[suffix]


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a table (`| 0  MetaX C500 | 0  Off |`), without needless space; empty
    for any other line.
    """
    bare = line.strip()
    return [" ".join(cell.split()) for cell in bare.strip("|").split("|")] if bare.startswith("|") else []


def bus_id(text: str) -> str:
    """Return `0000:1b:00.0` for `00000000:1B:00.0`, `00:1b:00.0` (Enflame: two digits of domain) or `1b:00.0`."""
    found = _BUS_ID.fullmatch(text.strip())
    if not found:
        raise Unexpected("a PCI bus id such as 0000:1b:00.0", text)
    domain, bus, device, function = found.groups(default="0")
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def bus_id_in(text: str) -> str:
    """Return the first PCI bus id in an otherwise unreadable text; empty without one."""
    found = re.search(rf"(?<![0-9a-fA-F:]){_BUS_ID.pattern}(?![0-9a-fA-F])", text)
    return bus_id(found[0]) if found else ""


def identity(text: str, what: str) -> str:
    """Return a uuid or serial number: up to 64 printable characters without a space, the limit of Kubernetes."""
    if not _IDENTITY.fullmatch(text.strip()):
        raise Unexpected(f"{what} of up to 64 printable characters", text)
    return text.strip()


def name(text: str, what: str) -> str:
    """Return a product's name or a version, on one line."""
    clean = " ".join(text.split())
    if not clean or len(clean) > _MAX_NAME or not clean.isprintable() or "�" in clean:
        raise Unexpected(what, text)
    return clean


def name_if_said(text: str | None) -> str:
    """Return the name for display only: empty if it is missing or broken."""
    try:
        return name(said(text), "a name")
    except Unexpected:
        return ""
