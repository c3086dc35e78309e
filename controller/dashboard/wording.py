"""Amounts, shares and times in readable form, equal in every language. Pure; used by `render`."""

from datetime import UTC, datetime, timedelta  # noqa: F401 (a doctest uses timedelta)
from typing import Final

KIB: Final = 1 << 10
NONE: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(number: int) -> str:
    """Return bytes with at least three digits: 16384 MiB → `16 GiB`, 7500 MiB → `7.32 GiB`."""
    unit, size = 0, float(number)
    while abs(size) >= KIB and unit < len(_UNITS) - 1:
        size /= KIB
        unit += 1
    digits = 0 if size == int(size) or size >= 100 else 1 if size >= 10 else 2
    return f"{size:.{digits}f} {_UNITS[unit]}"


def percent(part: float, whole: float) -> str:
    """Return a rounded percentage; 0 % and 100 % only if exact."""
    if whole <= 0:
        return NONE
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1 %"
    if 99 < share < 100:
        return "99 %"
    return f"{share:.0f} %"


def count(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def score(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value == value else NONE  # noqa: PLR0124 (NaN differs from itself)


def moment(at: datetime | str | None) -> str:
    """Return a time such as `2026-11-21 08:40:12`, UTC."""
    if not at:
        return ""
    try:
        found = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        return str(at)
    return found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def age(at: datetime | str | None, now: datetime | None = None) -> str:
    """Return the time since `at` as kubectl writes it, in any language: `45s`, `3m20s`, `5h10m`, `3d`.

    `now`: default the present. Empty if `at` is no time. `page.js` has the same rules.

    >>> start = datetime(2026, 1, 1, tzinfo=UTC)
    >>> [age(start, start + timedelta(seconds=s)) for s in (0, 119, 200, 720, 18_600, 36_000, 180_000, 10**6)]
    ['0s', '119s', '3m20s', '12m', '5h10m', '10h', '2d2h', '11d']
    """
    try:
        start = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        return ""
    if start is None:
        return ""
    seconds = max(int(((now or datetime.now(UTC)) - start).total_seconds()), 0)
    for limit, unit, of, part, parts in _AGES:
        if seconds < limit:
            rest = seconds % of // parts if parts else 0
            return f"{seconds // of}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{seconds // _DAY}d"


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_AGES: Final = (
    (2 * _MINUTE, "s", 1, "", 0),
    (10 * _MINUTE, "m", _MINUTE, "s", 1),
    (3 * _HOUR, "m", _MINUTE, "", 0),
    (8 * _HOUR, "h", _HOUR, "m", _MINUTE),
    (2 * _DAY, "h", _HOUR, "", 0),
    (8 * _DAY, "d", _DAY, "h", _HOUR),
)
"""Seconds below which these units are used: the unit, its length, the smaller unit, its length."""


def permille(part: int, whole: int) -> int:
    """Return thousandths for drawings, 0 to 1000; a positive amount is never drawn as zero."""
    if whole <= 0 or part <= 0:
        return 0
    return max(1, min(1000, 1000 * part // whole))
