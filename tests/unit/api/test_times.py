"""Timestamps and what is computed from them. The text of ages is shown by doctests."""

from datetime import UTC, datetime, timedelta

from hami_dra.api.times import elapsed, latest

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_the_latest_of_timestamps():
    moments = ["2026-11-21T10:00:00Z", None, "2026-11-21T11:59:55Z", "not a time"]
    assert latest(moments, NOW) == NOW - timedelta(seconds=5)
    assert latest([], NOW) == NOW


def test_a_time_in_the_future_counts_as_now():
    assert elapsed("2026-11-21T12:30:00Z", NOW) == timedelta()
    assert latest(["2026-11-21T12:30:00Z"], NOW) == NOW
