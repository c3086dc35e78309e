"""Whether a controller leads, by its lease."""

import asyncio
from datetime import UTC, datetime

import pytest

from controller.cli.leadership import held_places, is_held
from controller.views.overview import Reservation, encoded
from hami_dra.api import kinds, names
from hami_dra.api.core import LeaseSpec
from hami_dra.api.times import timestamp
from hami_dra.kube.embedded import MemoryCluster
from hami_dra.kube.protocol import Forbidden

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


PLACE = Reservation(
    kind="reserved", namespace="team", name="one", holder="pod team/one", pod="team/one", node="n1",
    devices=("nvidia.hami.io/n1/gpu-0",), since="", until="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("holder", "text", "places"),
    [("a", encoded([PLACE]), (PLACE,)), ("", encoded([PLACE]), ()), ("a", "[{]", ()), ("a", "", ()), (None, "", ())],
)
def test_places_are_those_of_a_leader_that_is_there(holder, text, places):
    async def story():
        cluster = MemoryCluster()
        if holder is not None:
            spec = {"holderIdentity": holder, "renewTime": timestamp(datetime.now(UTC))}
            body = {"metadata": {"name": names.CONTROLLER, "annotations": {names.HELD_PLACES: text}}, "spec": spec}
            await cluster.create(kinds.LEASE, body, namespace="here")
        assert await held_places(cluster, "here") == places

    asyncio.run(story())


def test_a_lease_that_may_not_be_read_says_nothing():
    class Closed:
        async def get(self, *_):
            raise Forbidden("leases is forbidden")

    assert asyncio.run(held_places(Closed(), "here")) == ()
