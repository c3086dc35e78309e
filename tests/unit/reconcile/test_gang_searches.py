"""Decisions about gangs in many turns: what a gang has found counts until anything else is decided, and never for longer."""

from unittest.mock import patch

from controller.reconcile.scheduling_cycle import gang_searches
from hami_dra.api import kinds
from tests.support.harness import claim, pod, template
from tests.unit.reconcile.gang_stories import QUICK, member, nodes, prepare, story_of

FOUR = ("m0", "m1", "m2", "m3")
one_member_a_turn = patch.object(gang_searches, "_PORTION", 0.0)


def turns(harness):
    return harness.metric("hami_dra_decision_seconds_count", result="unfinished")


async def until_under_way(harness, devices):
    """Wait until the gang has found so many devices and is not decided yet."""
    for _ in range(10_000):
        if len(harness.controller.inventory.usage.uses()) == devices:
            return
        await harness.sleep(0)
    raise AssertionError("never under way")


@story_of()
async def test_a_gang_is_placed_in_many_turns(harness):
    with one_member_a_turn:
        await prepare(harness, *map(member, FOUR))
        harness.start(**QUICK)
        await harness.bound(*FOUR)
        assert turns(harness) >= len(FOUR)
        assert harness.metric("hami_dra_gang_decisions_total", result="placed") == 1


@story_of()
async def test_a_pod_that_comes_between_two_turns_finds_what_the_gang_had_found_free(harness):
    """The gang of 32 fills all cards, eight members each; it has begun with each when the pod comes."""
    with one_member_a_turn:
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("part", 2))
        await harness.add(kinds.RESOURCE_CLAIM, claim("whole", 16))
        many = [f"m{i:02}" for i in range(32)]
        await harness.add(kinds.POD, *(member(name, least=32, templates=["part"]) for name in many))
        harness.start(**QUICK)
        await until_under_way(harness, 4)
        await harness.add(kinds.POD, pod("urgent", claims=["whole"], gated=True, priority=100))
        await harness.bound("urgent")
        await harness.sleep(20)
        assert [name for name, node in (await nodes(harness)).items() if node] == ["urgent"]
        assert len(harness.controller.inventory.usage.uses()) == 1


@story_of()
async def test_nothing_counts_of_a_gang_whose_member_is_deleted_or_whose_leader_ends_between_two_turns(harness):
    with one_member_a_turn:
        await prepare(harness, *map(member, FOUR))
        task = harness.start(**QUICK)
        await until_under_way(harness, 2)
        await harness.delete_pod("m3")
        await harness.sleep(5)
        assert not harness.controller.inventory.usage.uses()
        await harness.add(kinds.POD, member("m3"))
        await until_under_way(harness, 2)
        ended = harness.controller
        await harness.stop(task)
        assert not ended.inventory.usage.uses()
