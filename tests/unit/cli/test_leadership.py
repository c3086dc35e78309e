"""Whether a controller leads, by its lease."""

from datetime import UTC, datetime

import pytest

from controller.cli.leadership import is_held
from hami_dra.api.core import LeaseSpec

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("holder", "renewed", "held"),
    [
        ("a", "2026-01-01T11:59:50.000000Z", True),
        ("a", "2026-01-01T12:00:20.000000Z", True),  # its clock is ahead
        ("a", "2026-01-01T11:59:00.000000Z", False),
        ("", "2026-01-01T11:59:50.000000Z", False),
        (None, None, False),
        ("a", "yesterday", False),
        ("a", "2026-01-01T11:59:50", True),
    ],
)
def test_a_lease_is_held_while_it_is_renewed(holder, renewed, held):
    spec = LeaseSpec(holder_identity=holder, renew_time=renewed, lease_duration_seconds=15)
    assert is_held(spec, NOW) is held
