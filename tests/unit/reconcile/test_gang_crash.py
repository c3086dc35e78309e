"""The leader is killed before or after any write about a gang of four; another one takes over, and nothing is left over."""

import pytest

from hami_dra.api import kinds
from tests.support.harness import play
from tests.support.mortal import Mortal
from tests.unit.reconcile.gang_stories import QUICK, gates, holders, member, prepare

NAMES = ("m0", "m1", "m2", "m3")


async def watch_bindings(harness):
    """No pod is bound before all four have their devices, read at every write."""

    async def check(request):
        if request.kind is kinds.POD and request.subresource == "binding":
            assert await holders(harness) == set(NAMES)

    harness.cluster.hooks.append(check)


async def all_run_once(harness, decisions):
    """Every member runs, after at most this many decisions of the present leader."""
    await harness.bound(*NAMES)
    assert harness.metric("hami_dra_gang_decisions_total", result="placed") <= decisions
    assert harness.metric("hami_dra_gang_decisions_total", result="refused") == 0
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.check_nothing_leaked()
    assert await gates(harness) == set()
    for name in NAMES:
        await harness.delete_pod(name)
    await harness.sleep(5)
    assert await harness.claims() == []


def writes_of_a_whole_run():
    counted = []

    async def story(harness):
        mortal = Mortal(harness.cluster, 0, before=False)
        await prepare(harness, *map(member, NAMES))
        harness.start(through=mortal, **QUICK)
        await harness.bound(*NAMES)
        await harness.sleep(1)
        counted.append(mortal.writes)

    play(story, controller=False)
    return counted[0]


async def start_and_kill(harness, at, *, before):
    """Run a controller until its write number `at`, and kill it before or after that write."""
    mortal = Mortal(harness.cluster, at, before=before)
    first = harness.start(through=mortal, **QUICK)

    async def dead():
        return mortal.dead.is_set()

    await harness.until(dead)
    await harness.stop(first)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_any_write(before):
    total = writes_of_a_whole_run()
    assert total >= 16  # node, mark, allocation and gate of each
    for at in range(1, total + 1):

        async def story(harness, at=at):
            await prepare(harness, *map(member, NAMES))
            await watch_bindings(harness)
            await start_and_kill(harness, at, before=before)
            harness.start(**QUICK)
            await all_run_once(harness, decisions=1)

        play(story, controller=False)


@pytest.mark.parametrize("at", range(1, 13))
def test_killed_and_a_member_is_deleted_before_another_leader_is_there(at):
    """What the others hold is released, and they run once the fourth is there again."""

    async def story(harness):
        await prepare(harness, *map(member, NAMES))
        await start_and_kill(harness, at, before=False)
        await harness.delete_pod("m2")
        harness.start(**QUICK)
        await harness.sleep(20)
        assert await holders(harness) == set()
        assert await gates(harness) == {"m0", "m1", "m3"}
        assert not any(found.status.nominated_node_name for found in await harness.pods())
        await harness.add(kinds.POD, member("m2"))
        await all_run_once(harness, decisions=1)

    play(story, controller=False)


@pytest.mark.parametrize("at", range(5, 13))
def test_killed_and_the_room_is_gone_before_another_leader_is_there(at):
    """A half-written gang is released where the rest does not fit next to it any more."""

    async def story(harness):
        await prepare(harness, *map(member, NAMES))
        await start_and_kill(harness, at, before=False)
        for node in ("n0", "n1"):
            await harness.patch_node(node, {"spec": {"unschedulable": True}})
        harness.start(**QUICK)
        await harness.sleep(30)
        assert await holders(harness) == set()
        for node in ("n0", "n1"):
            await harness.patch_node(node, {"spec": {"unschedulable": False}})
        await harness.bound(*NAMES)

    play(story, controller=False)
