"""Timestamps in the API's formats, and ages as kubectl writes them. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final


def timestamp(moment: datetime) -> str:
    """Return a metav1.Time: RFC 3339 with whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime) -> str:
    """Return a metav1.MicroTime: RFC 3339 with six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def elapsed(moment: datetime | str | None, now: datetime) -> timedelta | None:
    """Return the time since a timestamp, or None without one. Clocks differ: a time in the future counts as now."""
    if not moment:
        return None
    try:
        then = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=now.tzinfo)
    return max(now - then, timedelta())


def latest(moments: Iterable[str | None], now: datetime) -> datetime:
    """Return the latest of timestamps, `now` at the latest; without any `now`."""
    ages = [found for moment in moments if (found := elapsed(moment, now)) is not None]
    return now - min(ages, default=timedelta())


def age(at: datetime | str | None, now: datetime | None = None) -> str:
    """Return the time since `at` as kubectl writes it, in any language: `45s`, `3m20s`, `5h10m`,
    `3d`.

    `now`: default the present. Empty if `at` is no time. `page.js` has the same rules.

    >>> start = datetime(2026, 1, 1, tzinfo=UTC)
    >>> [age(start, start + timedelta(seconds=s)) for s in (0, 119, 200, 720, 18_600, 36_000, 180_000, 10**6)]
    ['0s', '119s', '3m20s', '12m', '5h10m', '10h', '2d2h', '11d']
    """
    past = elapsed(at, now or datetime.now(UTC))
    if past is None:
        return ""
    seconds = int(past.total_seconds())
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
