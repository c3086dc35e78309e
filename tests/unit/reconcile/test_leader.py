"""Several controllers: one acts, the next takes over, and a leader that was away does no harm."""

import asyncio

from controller.reconcile.fence.rules import rule_body, rule_names
from controller.reconcile.runtime.settings import Mode
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.kube.lease_timings import Timings
from hami_dra.kube.protocol import Unavailable
from tests.support.harness import DRIVER, claim, play, pod, template
from tests.support.mortal import Mortal

TIMINGS = Timings()
RETRY = 1.2 * TIMINGS.retry
"""The longest pause between two looks at the lease: tries are spread by up to a fifth."""
QUICK = {"quiet_time": 0.0, "probe": False, "leader_election": True, "lease": TIMINGS}


async def leaders(harness):
    return harness.controller.metrics.registry.get_sample_value("hami_dra_leader")


async def check_all(harness):
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.check_nothing_leaked()


def test_a_leader_waits_one_write_timeout_before_it_acts():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p")
        assert 5 <= harness.clock.monotonic() < 7

    play(story, **QUICK)


def test_of_two_controllers_one_acts_and_the_other_takes_over_when_it_stops():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small", 2))
        first = harness.start(**QUICK)
        one = harness.controller
        await harness.sleep(1)
        harness.start(**QUICK)
        two = harness.controller
        await harness.add(kinds.POD, pod("p", templates=["small"]))
        await harness.bound("p")
        value = "hami_dra_leader"
        assert (one.metrics.registry.get_sample_value(value), two.metrics.registry.get_sample_value(value)) == (1, 0)
        before = harness.clock.monotonic()
        await harness.stop(first)
        await harness.add(kinds.POD, pod("q", templates=["small"]))
        await harness.bound("q")
        # released on exit: no waiting for the lease to run out
        assert harness.clock.monotonic() - before < RETRY + TIMINGS.write_timeout + 1
        await check_all(harness)

    play(story, controller=False)


def test_takeover_from_a_killed_leader_within_the_lease():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small", 2))
        mortal = Mortal(harness.cluster, 0, before=False)
        first = harness.start(through=mortal, **QUICK)
        await harness.sleep(10)
        harness.start(**QUICK)
        await harness.sleep(1)
        mortal.dead.set()
        await harness.stop(first)
        killed = harness.clock.monotonic()
        await harness.add(kinds.POD, pod("p", templates=["small"]))
        await harness.bound("p")
        # one look that sees the last renewal, one that sees it run out, and the write timeout of the one that died
        assert harness.clock.monotonic() - killed < TIMINGS.duration + 2 * RETRY + TIMINGS.write_timeout + 1
        await check_all(harness)

    play(story, controller=False)


class Stopped:
    """A cluster whose user is stopped (SIGSTOP): every call waits until it goes on, and is carried out then."""

    def __init__(self, inner):
        self._inner = inner
        self.paused = None

    def __getattr__(self, name):
        target = getattr(self._inner, name)
        if name == "watch":
            return target

        async def held(*arguments, **options):
            if self.paused is not None:
                await self.paused.wait()
            return await target(*arguments, **options)

        return held


def test_a_leader_that_was_stopped_for_longer_than_its_lease_does_no_harm():
    """It is stopped between finalizer and status. Another one gives the device away meanwhile; then it goes on."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a", 16), claim("b", 16))
        stopped = Stopped(harness.cluster)
        harness.start(through=stopped, **QUICK)
        one = harness.controller

        async def stop_it(request):
            if request.label == "patch resourceclaims" and request.name == "a" and stopped.paused is None:
                stopped.paused = asyncio.Event()

        harness.cluster.hooks.append(stop_it)
        await harness.sleep(6)
        await harness.add(kinds.POD, pod("a", claims=["a"]))
        await harness.sleep(1)
        assert stopped.paused is not None
        harness.start(**QUICK)
        # whoever leads now decides both; there is room for one
        await harness.add(kinds.POD, pod("b", claims=["b"]))
        await harness.bound("a", seconds=60)
        stopped.paused.set()
        await harness.sleep(30)
        await harness.check_never_overcommitted()
        await harness.check_bound_pods_have_their_claims()
        assert one.metrics.registry.get_sample_value("hami_dra_leader") == 0
        assert not await harness.node_of("b")

    play(story, controller=False, nodes=1, node_options={"cards": 1})


def test_a_leader_that_finds_its_lease_gone_while_it_writes_can_lead_again():
    """The elector notices while the term is still ending; whatever the order, the process stays a candidate."""
    away = 0.0

    async def slow_to_end(_informers, _may_write):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(4)

    async def story(harness):
        nonlocal away
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
        harness.start(helpers=(slow_to_end,), elector_clock=lambda: harness.clock.monotonic() + away, **QUICK)
        await harness.sleep(10)
        away = 100.0
        await harness.add(kinds.POD, pod("a", claims=["a"]))
        await harness.bound("a", seconds=60)
        await harness.add(kinds.POD, pod("b", claims=["b"]))
        await harness.bound("b", seconds=60)
        assert harness.metric("hami_dra_leader") == 1
        await check_all(harness)

    play(story, controller=False)


def test_a_leader_that_cannot_renew_stops_acting_before_anybody_else_begins():
    async def story(harness):
        await harness.sleep(10)
        harness.cluster.fail_next(Unavailable("away"), verb="patch", kind=kinds.LEASE, times=6)
        await harness.sleep(9)
        assert harness.metric("hami_dra_leader") == 0
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p", seconds=60)  # when the lease can be had again, the next term places it
        await check_all(harness)

    play(story, **QUICK)


def test_terms_leave_nothing_assumed_behind():
    """The term ends while a commit is under way, before its first write has an answer."""

    async def story(harness):
        inventory = harness.controller.inventory
        go_on = asyncio.Event()

        async def hold(request):
            if request.label == "patch resourceclaims":
                await go_on.wait()

        async def lost():
            return harness.metric("hami_dra_leader") == 0

        await harness.sleep(7)
        assert harness.metric("hami_dra_leader") == 1
        harness.cluster.hooks.append(hold)
        harness.cluster.fail_next(Unavailable("away"), verb="patch", kind=kinds.LEASE, times=6)
        await harness.add(kinds.RESOURCE_CLAIM, claim("a", 16))
        await harness.add(kinds.POD, pod("a", claims=["a"], cpu="6"))
        uid = (await harness.pod("a")).metadata.uid
        await harness.sleep(1)
        assert inventory.assumed_node(uid) == "n0"
        assert inventory.devices.memory_used.sum() == 16 * 2**30
        await harness.until(lost, seconds=20)
        await harness.sleep(0)
        assert inventory.assumed_node(uid) == ""
        assert inventory.devices.memory_used.sum() == 0

        go_on.set()
        await harness.bound("a", seconds=60)
        assert inventory.assumed_node(uid) == ""
        await harness.delete_pod("a")
        await harness.sleep(2)
        fit = inventory.rules.node_fit(Pod(metadata=ObjectMeta(name="x", uid="x")))
        assert fit.mask[:1].all()
        assert inventory.nodes.used("cpu").sum() == 0
        assert inventory.devices.memory_used.sum() == 0

    play(story, nodes=1, **QUICK)


# --- native mode -----------------------------------------------------------------------------------------------------------


def test_native_mode_allocates_nothing_and_clears_away_gate_and_fence():
    async def story(harness):
        await harness.sleep(12)
        assert (await harness.cluster.list(kinds.DEVICE_TAINT_RULE)).items
        await harness.stop(harness.controllers[0])
        # one that somebody deletes, and one of a version that knew no finalizer
        await harness.cluster.create(kinds.DEVICE_TAINT_RULE, rule_body(DRIVER, rule_names(DRIVER)[1]))
        await harness.cluster.delete(kinds.DEVICE_TAINT_RULE, rule_names(DRIVER)[1])
        await harness.cluster.create(
            kinds.DEVICE_TAINT_RULE, {"metadata": {"name": rule_names("old")[0]}, "spec": rule_body("old")["spec"]}
        )
        assert len((await harness.cluster.list(kinds.DEVICE_TAINT_RULE)).items) == 3
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        harness.start(mode=Mode.NATIVE)
        await harness.sleep(1)
        assert (await harness.pod("p")).spec.scheduling_gates == ()
        assert (await harness.cluster.list(kinds.DEVICE_TAINT_RULE)).items == ()
        await harness.add(kinds.POD, pod("late", gated=True))
        await harness.bound("late")
        found = await harness.claim("c")
        assert found.status.allocation is None
        assert found.metadata.finalizers == ()
        # it accounts for what kube-scheduler allocates
        await harness.allocate_as_somebody_else("c", "n0", memory=4)
        await harness.sleep(1)
        assert harness.controller.inventory.devices.memory_used.sum() == 4 * 2**30

    play(story)
