"""`hami_dra_bind_seconds`: of pods that fitted at once, and of no others."""

from controller.decide import decide
from hami_dra.api import kinds
from tests.support.harness import claim, play, pod

QUICK = {"quiet_time": 0.0, "probe": False, "decide": decide}


async def add(harness, name, memory=12):
    await harness.add(kinds.RESOURCE_CLAIM, claim(name, memory))
    await harness.add(kinds.POD, pod(name, claims=[name], gated=True))


def test_pods_that_fit_at_once_are_counted_and_those_that_waited_for_room_are_not():
    async def story(harness):
        await add(harness, "first")
        await harness.bound("first")
        assert harness.metric("hami_dra_bind_seconds_count") == 1
        assert harness.metric("hami_dra_bind_seconds_sum") < 5
        await add(harness, "second")
        await harness.sleep(60)
        await harness.finish_pod("first")
        await harness.bound("second")
        assert harness.metric("hami_dra_bind_seconds_count") == 1

    play(story, nodes=1, node_options={"cards": 1}, **QUICK)


def test_a_pod_that_is_older_than_the_leader_is_not_counted():
    async def story(harness):
        await add(harness, "old")
        await harness.sleep(30)
        harness.start(**QUICK)
        await harness.bound("old")
        assert harness.metric("hami_dra_bind_seconds_count") == 0

    play(story, controller=False)
