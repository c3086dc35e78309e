"""Leader election on a memory cluster, in a time that only moves when everybody waits."""

import asyncio
import heapq
from contextlib import asynccontextmanager
from itertools import count

import pytest

from hami_dra.api import kinds
from hami_dra.api.errors import ConfigError
from hami_dra.kube.lease import LeaderElector
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import Forbidden, Unavailable
from tests.support.steered_cluster import SteeredCluster

SPACE, NAME = "hami-system", "controller"


class Time:
    """Virtual seconds. `advance` wakes sleepers in order; between two of them everybody runs until nobody can."""

    def __init__(self):
        self.now = 1_000.0
        self._sleepers = []
        self._order = count()
        self._stopped = set()

    async def sleep_as(self, who, seconds):
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + max(seconds, 0), next(self._order), who, woken))
        await woken.wait()

    async def settle(self):
        for _ in range(25):
            await asyncio.sleep(0)

    async def advance(self, seconds):
        await self.settle()
        until = self.now + seconds
        held = []
        while self._sleepers and self._sleepers[0][0] <= until:
            at, order, who, woken = heapq.heappop(self._sleepers)
            if who in self._stopped:
                held.append((at, order, who, woken))
                continue
            self.now = max(self.now, at)
            woken.set()
            await self.settle()
        for sleeper in held:
            heapq.heappush(self._sleepers, sleeper)
        self.now = until
        await self.settle()

    def stop(self, who):
        """SIGSTOP: its sleeps do not end, while time goes on."""
        self._stopped.add(who)

    def go_on(self, who):
        self._stopped.discard(who)


class Candidate:
    def __init__(self, name, cluster, time, timings=None):
        self.name = name
        self.terms = 0
        self.working = False
        self.elector = LeaderElector(
            cluster,
            SPACE,
            NAME,
            identity=name,
            timings=timings or Timings(),
            clock=lambda: time.now,
            sleep=lambda seconds: time.sleep_as(name, seconds),
            uniform=lambda: 0.5,
        )
        self.finish = asyncio.Event()

    async def lead(self):
        self.terms += 1
        self.working = True
        try:
            await self.finish.wait()
        finally:
            self.working = False


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def cluster():
    return SteeredCluster()


@asynccontextmanager
async def running(*candidates):
    tasks = [asyncio.create_task(one.elector.run(one.lead)) for one in candidates]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def lease(cluster):
    return (await cluster.get(kinds.LEASE, NAME, SPACE)).spec


async def test_the_first_one_leads_and_stays(cluster, time):
    a, b = Candidate("a", cluster, time), Candidate("b", cluster, time)
    async with running(a, b):
        for _ in range(60):
            await time.advance(1)
            assert a.elector.holds()
            assert not b.elector.holds()
    assert (a.terms, b.terms) == (1, 0)
    assert b.elector.leader == "a"


async def test_the_record_says_who_since_when_and_for_how_long(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(0)
        first = await lease(cluster)
        await time.advance(5)
        later = await lease(cluster)
    assert (first.holder_identity, first.lease_duration_seconds, first.lease_transitions) == ("a", 15, 0)
    assert first.acquire_time == later.acquire_time
    assert first.renew_time < later.renew_time


async def test_takeover_after_the_record_stood_still_for_the_whole_duration(cluster, time):
    a, b = Candidate("a", cluster, time), Candidate("b", cluster, time)
    async with running(a, b) as (task, _):
        await time.advance(3)
        time.stop("a")
        await time.advance(8)
        assert not a.elector.holds()
        await time.advance(4)
        assert not b.elector.holds(), "nobody may lead before the duration is over"
        await time.advance(8)
        assert b.elector.holds()
        assert (await lease(cluster)).lease_transitions == 1
        assert not task.done()


async def test_a_stopped_leader_knows_that_it_lost_before_it_writes_again(cluster, time):
    a, b = Candidate("a", cluster, time), Candidate("b", cluster, time)
    async with running(a, b):
        await time.advance(3)
        assert a.elector.holds()
        time.stop("a")
        await time.advance(60)
        # the very next thing that the process does after SIGCONT, before any timer of its own has fired
        assert a.working
        assert not a.elector.holds()
        assert b.elector.holds()
        time.go_on("a")
        await time.advance(1)
        assert not a.working
        assert a.elector.leader == "b"
        await time.advance(30)
        assert (a.terms, b.terms) == (1, 1)


async def test_a_stopped_leader_whose_lease_nobody_took_starts_a_new_term(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(1)
        time.stop("a")
        await time.advance(60)
        assert not a.elector.holds()
        time.go_on("a")
        await time.advance(5)
        assert a.elector.holds()
        assert a.terms == 2
        assert (await lease(cluster)).lease_transitions == 0


async def test_a_lease_given_back_is_taken_at_the_next_try(cluster, time):
    a, b = Candidate("a", cluster, time), Candidate("b", cluster, time)
    async with running(a, b) as (task, _):
        await time.advance(1)
        task.cancel()
        await time.settle()
        assert not a.working
        assert (await lease(cluster)).holder_identity == ""
        await time.advance(2.2)
        assert b.elector.holds()
        assert (await lease(cluster)).lease_transitions == 1


async def test_the_lease_is_given_back_when_the_work_is_done_or_fails(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a) as (task,):
        await time.advance(1)
        a.finish.set()
        await time.settle()
        assert task.done()
        assert task.exception() is None
    assert (await lease(cluster)).holder_identity == ""

    async def fail():
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        await a.elector.run(fail)
    assert (await lease(cluster)).holder_identity == ""


async def test_a_leader_without_answers_stops_at_the_renew_deadline(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(1)
        cluster.fail_next(Unavailable("away"), verb="patch", times=1_000)
        await time.advance(6.5)
        assert a.elector.holds()
        assert "away" in a.elector.problem
        await time.advance(2.5)
        assert not a.elector.holds()
        assert not a.working


async def test_a_renewal_whose_answer_was_lost_is_found_by_reading(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(1)
        cluster.fail_next(Unavailable("lost"), verb="patch", applied=True)
        for _ in range(30):
            await time.advance(1)
            assert a.elector.holds()
    assert a.terms == 1


async def test_a_first_lease_whose_answer_was_lost_is_found_by_reading(cluster, time):
    cluster.fail_next(Unavailable("lost"), verb="create", applied=True)
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(3)
        assert a.elector.holds()


async def test_two_that_start_at_once_do_not_both_lead(cluster, time):
    candidates = [Candidate(name, cluster, time) for name in "abcde"]
    async with running(*candidates):
        await time.advance(0)
        assert sum(one.elector.holds() for one in candidates) == 1


async def test_a_lease_taken_away_ends_the_term_at_the_next_renewal(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(1)
        await cluster.patch(kinds.LEASE, NAME, {"spec": {"holderIdentity": "z"}}, namespace=SPACE)
        await time.advance(3)
        assert not a.elector.holds()
        assert not a.working
        assert a.elector.leader == "z"


async def test_a_deleted_lease_is_made_again_in_a_new_term(cluster, time):
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(1)
        await cluster.delete(kinds.LEASE, NAME, namespace=SPACE)
        await time.advance(6)
        assert a.elector.holds()
        assert a.terms == 2


async def test_wall_clocks_do_not_matter(cluster, time):
    body = {
        "metadata": {"name": NAME},
        "spec": {
            "holderIdentity": "z",
            "leaseDurationSeconds": 15,
            "renewTime": "1999-01-01T00:00:00.000000Z",
            "acquireTime": "2999-01-01T00:00:00.000000Z",
        },
    }
    await cluster.create(kinds.LEASE, body, namespace=SPACE)
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(14)
        assert not a.elector.holds()
        # a renewal of z with an even older time stamp is a renewal
        await cluster.patch(kinds.LEASE, NAME, {"spec": {"renewTime": "1998-01-01T00:00:00.000000Z"}}, namespace=SPACE)
        await time.advance(14)
        assert not a.elector.holds()
        await time.advance(5)
        assert a.elector.holds()


async def test_a_longer_duration_in_the_record_is_respected(cluster, time):
    spec = {"holderIdentity": "z", "leaseDurationSeconds": 60}
    await cluster.create(kinds.LEASE, {"metadata": {"name": NAME}, "spec": spec}, namespace=SPACE)
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(59)
        assert not a.elector.holds()
        await time.advance(4)
        assert a.elector.holds()


async def test_a_missing_right_is_kept_as_the_problem(cluster, time):
    cluster.fail_next(Forbidden('User "x" cannot get resource "leases"'), verb="get", times=3)
    a = Candidate("a", cluster, time)
    async with running(a):
        await time.advance(1)
        assert "cannot get" in a.elector.problem
        await time.advance(8)
        assert a.elector.problem == ""
        assert a.elector.holds()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"duration": 14}, r"lease duration 14 s - renew deadline 8\.0 s must be more than write timeout 5\.0 s"),
        ({"renew_deadline": 9}, "lower the renew deadline"),
        ({"write_timeout": 6}, "write timeout 6 s"),
        ({"clock_margin": 2}, r"clock margin 2 s"),
        ({"retry": 5}, "twice the retry period"),
        ({"retry": 0}, r"must be positive: lease duration 15 s, renew deadline 8\.0 s, retry period 0 s, write"),
        ({"clock_margin": -1}, "positive"),
    ],
)
def test_times_that_cannot_be_safe_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Timings(**options)


def test_every_process_is_somebody_else(cluster):
    assert LeaderElector(cluster, SPACE, NAME).identity != LeaderElector(cluster, SPACE, NAME).identity
