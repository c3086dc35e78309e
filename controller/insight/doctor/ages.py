"""Ages of events by the cluster's own timestamps. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta


def age(moment: str | None, now: datetime) -> timedelta | None:
    """Return the age, or None without a timestamp. Clocks differ: a time in the future counts as
    now.
    """
    if not moment:
        return None
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=now.tzinfo)
    return max(now - then, timedelta())


def newest(moments: Iterable[str | None], now: datetime) -> datetime:
    """Return the latest time in the files, the best estimate of when they were taken; else
    `now`.
    """
    ages = [found for moment in moments if (found := age(moment, now)) is not None]
    return now - min(ages, default=timedelta())


def older(moment: str | None, now: datetime, least: timedelta) -> bool:
    """Return whether the age is at least `least`. Without a timestamp (files omit it) it counts as
    old.
    """
    found = age(moment, now)
    return found is None or found >= least


def in_words(span: timedelta | None) -> str:
    """Return a text such as `12 minutes`."""
    if span is None:
        return "an unknown time"
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(span.total_seconds() // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{int(span.total_seconds())} seconds"
