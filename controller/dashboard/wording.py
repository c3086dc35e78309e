"""Names, amounts, shares and times in readable form, equal in every language. Pure; used by `render`."""

from datetime import UTC, datetime
from typing import Final

from hami_dra.vendors.registry import plugin_names, plugin_of

KIB: Final = 1 << 10
NONE: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(number: int) -> str:
    """Return bytes with three digits where they say more: 16384 MiB → `16 GiB`, 7500 MiB → `7.32 GiB`."""
    unit, size = 0, float(number)
    while abs(size) >= KIB and unit < len(_UNITS) - 1:
        size /= KIB
        unit += 1
    digits = 0 if size == int(size) or size >= 100 else 1 if size >= 10 else 2
    return f"{_short(size, digits)} {_UNITS[unit]}"


def _short(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def percent(part: float, whole: float) -> str:
    """Return a rounded percentage; 0% and 100% only if exact."""
    if whole <= 0:
        return NONE
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1%"
    if 99 < share < 100:
        return "99%"
    return f"{share:.0f}%"


def vendor(name: str) -> str:
    """Return a vendor's name as people write it; a driver that is no vendor's stays as it is.

    >>> vendor("neuron"), vendor("gpu.example.com")
    ('AWS Neuron', 'gpu.example.com')
    """
    return plugin_of(name).title if name in plugin_names() else name


def count(number: int) -> str:
    return f"{number:,}"


def score(value: float) -> str:
    return _short(value, 2) if value == value else NONE  # noqa: PLR0124 (NaN differs from itself)


def moment(at: datetime | str | None) -> str:
    """Return a time such as `2026-11-21 08:40:12`, UTC."""
    if not at:
        return ""
    try:
        found = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        return str(at)
    return found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def permille(part: int, whole: int) -> int:
    """Return thousandths for drawings, 0 to 1000; a positive amount is never drawn as zero."""
    if whole <= 0 or part <= 0:
        return 0
    return max(1, min(1000, 1000 * part // whole))
