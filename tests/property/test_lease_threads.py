"""However either thread of a controller is frozen: nobody writes while another one may act, and one leads again in the end.

The model: each candidate has an elector in its side thread and a loop that writes in its main thread; both live in one
virtual time and can be stopped apart. A write is checked (`holds`), and sent later, up to a frozen time later, by the rule of
`transport`: within the write timeout or not at all. A new leader acts one write timeout after it took over, as `term` does.
"""

import asyncio
from contextlib import suppress

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import Unavailable
from hami_dra.kube.side_thread import run_in
from tests.support.examples import examples
from tests.support.steered_cluster import SteeredCluster
from tests.unit.kube.test_lease import Candidate, Time

TIMINGS = Timings()
WHO = st.sampled_from("ab")
THREADS = st.sampled_from([("main",), ("side",), ("main", "side")])
WAIT = st.tuples(st.just("wait"), st.integers(1, 30))
STEPS = st.one_of(
    WAIT,
    WAIT,
    st.tuples(st.just("stop"), WHO, THREADS),
    st.tuples(st.just("go on"), WHO, THREADS),
    st.tuples(st.just("fail"), st.sampled_from(["get", "patch", "create"]), st.booleans(), st.integers(1, 6)),
    st.tuples(st.just("resign"), WHO),
)


class SameLoop:
    """A side thread of the model: the loop is the same, the crossing is the real one."""

    async def run(self, start):
        return await run_in(asyncio.get_running_loop(), start)


class Settling(Time):
    """Crossings between loops take some turns more."""

    async def settle(self):
        for _ in range(120):
            await asyncio.sleep(0)


class Controller(Candidate):
    """`self.name` is its side thread, `name/main` its main thread."""

    def __init__(self, name, replicas):
        super().__init__(name, replicas.cluster, replicas.time, TIMINGS)
        self.main = f"{name}/main"
        self.replicas = replicas
        self.election = self.elector
        self.elector.side = SameLoop()

    async def run(self):
        while True:
            await self.election.run(self.lead)

    async def lead(self):
        time = self.replicas.time
        self.working = True
        try:
            await time.sleep_as(self.main, TIMINGS.write_timeout)
            acting_since = time.now
            while True:
                asked = time.now
                if not self.election.holds():
                    return
                self.replicas.acts(self.name, acting_since)
                await time.sleep_as(self.main, 0.7)  # headers, a connection, other tasks; or it is frozen here
                if time.now - asked < TIMINGS.write_timeout:
                    self.replicas.sends(self.name)
        finally:
            self.working = False


class Replicas:
    def __init__(self):
        self.cluster, self.time = SteeredCluster(), Settling()
        self.acting = {}
        self.resigned = set()
        self.controllers = {who: Controller(who, self) for who in "ab"}
        self.tasks = {who: asyncio.create_task(one.run()) for who, one in self.controllers.items()}

    def acts(self, who, since):
        self.acting[who] = since

    def sends(self, who):
        others = [other for other, one in self.controllers.items() if other != who and one.election.holds()]
        begun = [other for other in others if other in self.acting and self.controllers[other].working]
        acting = [other for other in begun if self.acting[other] > self.acting[who]]
        assert not acting, f"{who} writes although {acting} acts by now"

    async def wait(self, seconds):
        for _ in range(seconds):
            await self.time.advance(1)
            assert sum(one.election.holds() for one in self.controllers.values()) <= 1

    async def do(self, step):
        match step:
            case ("wait", seconds):
                await self.wait(seconds)
            case ("stop", who, threads):
                for each in threads:
                    self.time.stop(who if each == "side" else f"{who}/main")
            case ("go on", who, threads):
                for each in threads:
                    self.time.go_on(who if each == "side" else f"{who}/main")
            case ("fail", verb, applied, times):
                self.cluster.fail_next(Unavailable("away"), verb=verb, applied=applied, times=times)
            case ("resign", who):
                if not self.resigned:
                    self.resigned.add(who)
                    await self.controllers[who].elector.resign()
                    assert not self.controllers[who].election.holds()

    async def end(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values())
        for task in self.tasks.values():
            with suppress(asyncio.CancelledError):
                task.result()


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=20))
@example([("wait", 10), ("stop", "a", ("main",)), ("wait", 60), ("go on", "a", ("main",)), ("wait", 5)])
@example([("wait", 10), ("stop", "a", ("main", "side")), ("wait", 25), ("go on", "a", ("main",)), ("wait", 9)])
@example([("wait", 10), ("stop", "a", ("main",)), ("resign", "a"), ("wait", 9), ("go on", "a", ("main",)), ("wait", 9)])
def test_nobody_writes_while_another_may_act(steps):
    async def story():
        replicas = Replicas()
        for step in steps:
            await replicas.do(step)
        replicas.cluster.clear_faults()
        for who in "ab":
            replicas.time.go_on(who)
            replicas.time.go_on(f"{who}/main")
        await replicas.wait(60)
        leaders = [who for who, one in replicas.controllers.items() if one.election.holds()]
        assert len(leaders) == 1
        assert not set(leaders) & replicas.resigned
        assert [who for who, one in replicas.controllers.items() if one.working] == leaders
        await replicas.end()

    asyncio.run(story())


def test_a_frozen_main_thread_keeps_its_lease():
    async def story():
        replicas = Replicas()
        await replicas.wait(10)
        [leader] = [who for who, one in replicas.controllers.items() if one.election.holds()]
        replicas.time.stop(f"{leader}/main")
        for _ in range(120):
            await replicas.wait(1)
            assert replicas.controllers[leader].election.holds()
        await replicas.end()

    asyncio.run(story())
