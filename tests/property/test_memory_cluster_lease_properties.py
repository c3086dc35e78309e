"""However processes are stopped, answers are lost and servers are away: never two leaders, and one again when calm returns."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_dra.kube.protocol import Unavailable
from tests.support.steered_cluster import SteeredCluster
from tests.unit.kube.test_lease import Candidate, Time

WHO = st.sampled_from("abc")
WAIT = st.tuples(st.just("wait"), st.integers(1, 30))
STEPS = st.one_of(
    WAIT,
    WAIT,
    st.tuples(st.just("stop"), WHO),
    st.tuples(st.just("go on"), WHO),
    st.tuples(st.just("fail"), st.sampled_from(["get", "patch", "create"]), st.booleans(), st.integers(1, 6)),
    st.tuples(st.just("restart"), WHO),
)


class Replicas:
    def __init__(self):
        self.cluster, self.time = SteeredCluster(), Time()
        self.candidates, self.tasks = {}, {}
        for who in "abc":
            self.start(who)

    def start(self, who):
        candidate = self.candidates[who] = Candidate(who, self.cluster, self.time)
        self.tasks[who] = asyncio.create_task(candidate.elector.run(candidate.lead))

    async def end(self, who):
        self.tasks[who].cancel()
        await asyncio.wait([self.tasks[who]])

    @property
    def leaders(self):
        return [who for who, candidate in self.candidates.items() if candidate.elector.holds()]

    async def wait(self, seconds):
        for _ in range(seconds):
            await self.time.advance(1)
            assert len(self.leaders) <= 1

    async def do(self, step):
        match step:
            case ("wait", seconds):
                await self.wait(seconds)
            case ("stop", who):
                self.time.stop(who)
            case ("go on", who):
                self.time.go_on(who)
            case ("fail", verb, applied, times):
                self.cluster.fail_next(Unavailable("away"), verb=verb, applied=applied, times=times)
            case ("restart", who):
                await self.end(who)
                self.start(who)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=20))
def test_never_two_leaders_and_always_one_in_the_end(steps):
    async def story():
        replicas = Replicas()
        for step in steps:
            await replicas.do(step)
        replicas.cluster.clear_faults()
        for who in "abc":
            replicas.time.go_on(who)
        await replicas.wait(60)
        assert len(replicas.leaders) == 1
        assert [who for who, candidate in replicas.candidates.items() if candidate.working] == replicas.leaders
        for who in "abc":
            await replicas.end(who)

    asyncio.run(story())
