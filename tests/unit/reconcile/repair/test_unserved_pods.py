"""Pods that want devices by hami-dra and name a scheduler that it does not serve."""

import pytest

from hami_dra.api import kinds
from tests.support.harness import claim, play, pod

QUICK = {"quiet_time": 0.0, "probe": False}


@pytest.mark.parametrize("early", [True, False], ids=["before the controller leads", "later"])
def test_the_owner_is_told_once_and_nothing_is_allocated(early):
    async def story(harness):
        policy = {"hami.io/node-scheduler-policy": "spread"}
        theirs = pod("theirs", claims=["a"], schedulerName="hami-scheduler", annotations=policy)
        unmarked = pod("unmarked", claims=["b"], schedulerName="hami-scheduler")
        await harness.add(kinds.RESOURCE_CLAIM, *(claim(name, 1) for name in "abc"))
        if early:
            await harness.add(kinds.POD, theirs)
        await harness.add(kinds.POD, unmarked, pod("ours", claims=["c"], annotations=policy))
        if not early:
            await harness.add(kinds.POD, theirs)

        async def told():
            return bool(await harness.events("SchedulerNotServed"))

        async def placed():
            return (await harness.claim("c")).status.allocation is not None

        await harness.until(told)
        await harness.until(placed)
        (event,) = await harness.events("SchedulerNotServed")
        assert event["regarding"]["name"] == "theirs"
        assert event["note"].startswith(
            "spec.schedulerName is hami-scheduler, and hami-dra places pods of default-scheduler only"
        )
        assert (await harness.claim("a")).status.allocation is None

    play(story, nodes=1, scheduler=False, **QUICK)
