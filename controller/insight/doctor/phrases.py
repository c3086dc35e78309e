"""Words that several checks use: ages by the cluster's own timestamps. Pure."""

from datetime import datetime, timedelta

from hami_dra.api.printable import counted
from hami_dra.api.times import elapsed


def older(moment: str | None, now: datetime, least: timedelta) -> bool:
    """Return whether the age is at least `least`. Without a timestamp (files omit it) it counts as old."""
    found = elapsed(moment, now)
    return found is None or found >= least


def in_words(span: timedelta | None) -> str:
    """Return a text such as `12 minutes`."""
    if span is None:
        return "an unknown time"
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(span.total_seconds() // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return counted(int(span.total_seconds()), "second")
