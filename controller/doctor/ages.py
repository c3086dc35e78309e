"""How long ago something happened, by the cluster's own words. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta


def age(moment: str | None, now: datetime) -> timedelta | None:
    """None where nobody says when. Clocks differ: what seems to be in the future is of now."""
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
    """The last moment that files speak of: when they were taken, as far as they tell. `now` where they speak of none."""
    ages = [found for moment in moments if (found := age(moment, now)) is not None]
    return now - min(ages, default=timedelta())


def older(moment: str | None, now: datetime, least: timedelta) -> bool:
    """Where nobody says when (files leave it out) it is old."""
    found = age(moment, now)
    return found is None or found >= least


def in_words(span: timedelta | None) -> str:
    """`12 minutes`"""
    if span is None:
        return "an unknown time"
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(span.total_seconds() // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{int(span.total_seconds())} seconds"
