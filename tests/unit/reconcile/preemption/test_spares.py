"""Nodes that are held back: preemptible pods run there, and a gang that lost a member gets their devices."""

import pytest

from controller.decide import decide
from hami_dra.api import kinds, names
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import play as play_scene
from tests.support.harness import pod, template

BIG = 12
"""GiB of a card's 16: two do not fit on one."""
YIELDS = {names.PREEMPTIBLE: "true"}


def play(story, **options):
    defaults = {"nodes": 1, "node_options": {"cards": 1}, "graceful": True, "quiet_time": 0.0, "probe": False}

    async def with_spare(harness):
        await harness.add_node("spare", cards=1, labels={names.SPARE: "true"})
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", BIG))
        await story(harness)

    play_scene(with_spare, **{**defaults, "decide": decide, "preemption": True, **options})


def one(name, priority=0, **options):
    return pod(name, templates=["big"], gated=True, priority=priority, **options)


async def team(harness, *pod_names, least=2, priority=0, **options):
    members = [one(name, priority, **options) for name in pod_names]
    await harness.add(kinds.POD, *(in_labelled_group(member, "team", least) for member in members))


async def why(harness, name):
    """The words of the latest event about a pod that waits."""
    said = [each["note"] for each in await harness.events() if each["regarding"]["name"] == name]
    return said[-1]


@pytest.mark.parametrize("stated", ["", "false", "True", "1", "\x00true"])
def test_an_ordinary_pod_waits_until_the_label_is_gone(stated):
    async def story(harness):
        await harness.add(kinds.POD, one("first"))
        await harness.bound("first")
        await harness.add(kinds.POD, one("second", annotations={names.PREEMPTIBLE: stated} if stated else {}))
        await harness.sleep(60)
        assert not await harness.node_of("second")
        assert "no node fits now: on spare: Spares: held back as a spare: only preemptible pods" in await why(
            harness, "second"
        )
        await harness.patch_node("spare", {"metadata": {"labels": {names.SPARE: "false"}}})
        await harness.bound("second", seconds=10)

    play(story)


def test_a_pod_that_states_that_it_is_preemptible_uses_a_spare_and_others_when_they_state_it():
    async def story(harness):
        await harness.add(kinds.POD, one("first"))
        await harness.bound("first")
        await harness.add(kinds.POD, one("second"))
        await harness.sleep(30)
        assert not await harness.node_of("second")
        await harness.cluster.patch(kinds.POD, "second", {"metadata": {"annotations": YIELDS}}, namespace="default")
        await harness.bound("second", seconds=10)
        assert await harness.node_of("second") == "spare"

    play(story)


@pytest.mark.parametrize("all_state_it", [True, False])
def test_a_gang_uses_spares_if_all_its_pods_state_it(all_state_it):
    async def story(harness):
        await harness.add(
            kinds.POD,
            in_labelled_group(one("a", annotations=YIELDS), "team", 2),
            in_labelled_group(one("b", annotations=YIELDS if all_state_it else {}), "team", 2),
        )
        await harness.sleep(60)
        assert {await harness.node_of("a"), await harness.node_of("b")} == ({"n0", "spare"} if all_state_it else {""})

    play(story)


def test_a_gang_that_lost_a_member_is_repaired_on_a_spare_and_a_new_one_does_not_start_there():
    async def story(harness):
        await harness.add_node("n1", cards=1)
        await team(harness, "a", "b")
        await harness.bound("a", "b")
        lost = await harness.node_of("b")
        await harness.patch_node(lost, {"spec": {"unschedulable": True}})
        await harness.delete_pod("b")
        other = [in_labelled_group(one(name), "other", 1) for name in ("x", "y")]
        await harness.add(kinds.POD, *other)
        await harness.sleep(30)
        assert {await harness.node_of("x"), await harness.node_of("y")} == {""}
        await team(harness, "c")
        await harness.bound("c", seconds=10)
        assert await harness.node_of("c") == "spare"
        # it has its minimum: one more is no repair
        await harness.add_node("spare-2", cards=1, labels={names.SPARE: "true"})
        await team(harness, "d")
        await harness.sleep(30)
        assert not await harness.node_of("d")
        await harness.check_nothing_leaked()

    play(story)


@pytest.mark.parametrize(("priority", "repaired"), [(1000, True), (0, False)])
def test_a_repair_takes_the_spare_from_a_preemptible_pod_of_lower_priority(priority, repaired):
    async def story(harness):
        await harness.add_node("n1", cards=1)
        await team(harness, "a", "b", priority=priority)
        await harness.bound("a", "b")
        await harness.add(kinds.POD, one("guest", annotations=YIELDS))
        await harness.bound("guest")
        assert await harness.node_of("guest") == "spare"
        lost = await harness.node_of("b")
        await harness.patch_node(lost, {"spec": {"unschedulable": True}})
        await harness.delete_pod("b")
        await team(harness, "c", priority=priority)
        if repaired:
            await harness.bound("c", seconds=30)
            assert await harness.node_of("c") == "spare"
            assert harness.metric("hami_dra_evictions_total") == 1
        else:
            await harness.sleep(60)
            assert await harness.node_of("guest") == "spare"
            assert not await harness.node_of("c")
        await harness.check_never_overcommitted()

    play(story)


def test_no_plan_for_an_ordinary_pod_uses_a_spare():
    async def story(harness):
        await harness.add(kinds.POD, one("keeps", 2000))
        await harness.bound("keeps")
        await harness.add(kinds.POD, one("guest", annotations=YIELDS))
        await harness.bound("guest")
        await harness.add(kinds.POD, one("urgent", 1000))
        await harness.sleep(60)
        assert not await harness.node_of("urgent")
        assert await harness.node_of("guest") == "spare"
        # one that may use it takes it by priority
        await harness.add(kinds.POD, one("yielding", 1000, annotations=YIELDS))
        await harness.bound("yielding", seconds=30)
        assert await harness.node_of("yielding") == "spare"

    play(story)


def test_no_place_is_reserved_on_a_spare():
    async def story(harness):
        await harness.add(kinds.POD, one("keeps"), one("guest", annotations=YIELDS))
        await harness.bound("keeps", "guest")
        await harness.add(kinds.POD, one("waits"))
        await harness.sleep(90)
        (said,) = await harness.events("PlaceReserved")
        assert f"on node {await harness.node_of('keeps')} " in said["note"]

    play(story, save_after=30.0, nodes=1)
