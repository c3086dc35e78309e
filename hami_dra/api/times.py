"""Timestamps in the API's formats. Pure."""

from datetime import UTC, datetime


def timestamp(moment: datetime) -> str:
    """Return a metav1.Time: RFC 3339 with whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime) -> str:
    """Return a metav1.MicroTime: RFC 3339 with six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
