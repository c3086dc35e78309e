"""What becomes of a gang when its members, its group, the room and kube-scheduler change: docs/gangs.md, "Life of a gang"."""

import asyncio

import pytest

from controller.gangs import GangKey
from hami_dra.api import kinds
from hami_dra.kube.protocol import Invalid, Unavailable
from tests.support.harness import SPACE, pod
from tests.unit.reconcile.gang_stories import (
    QUICK,
    add_group,
    bind,
    gates,
    grouped,
    holders,
    member,
    nodes,
    prepare,
    refuse,
    story_of,
    until_holding,
)

FOUR = ("m0", "m1", "m2", "m3")


async def running(harness):
    return {name for name, node in (await nodes(harness)).items() if node}


async def notes(harness, reason):
    return [event["note"] for event in await harness.events(reason)]


# --- no room -----------------------------------------------------------------------------------------------------------


@story_of(nodes=1)
async def test_all_gates_are_lifted_together_after_the_patience(harness):
    """An autoscaler then sees the whole gang; it holds nothing, and runs when there is room."""
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK)
    await harness.sleep(9)
    assert await gates(harness) == set(FOUR)
    await harness.sleep(3)
    assert await gates(harness) == set()
    assert await holders(harness) == set()
    assert any("of 4 members fit" in note for note in await notes(harness, "FilteringFailed"))
    await harness.add_node("n9")
    await harness.bound(*FOUR)


@story_of()
async def test_an_impossible_gang_keeps_nobody_waiting(harness):
    """It asks for five of four cards, was there first, and has the higher priority."""
    await prepare(harness, *(member(f"m{i}", least=5, priority=100) for i in range(5)))
    harness.start(**QUICK)
    await harness.sleep(5)
    for i in range(12):
        await harness.add(kinds.POD, pod(f"single{i}", templates=["whole"], gated=True))
        await harness.bound(f"single{i}", seconds=2)
        if i >= 3:
            await harness.delete_pod(f"single{i}")
            await harness.sleep(0.1)
        else:
            await harness.delete_pod(f"single{i}")
    assert await holders(harness) == set()
    assert harness.metric("hami_dra_gang_decisions_total", result="refused") < 40


@story_of()
async def test_equal_gangs_without_room_are_decided_as_one(harness):
    await prepare(harness, *(member(f"g{g}m{i}", f"g{g}", 5) for g in range(20) for i in range(5)))
    harness.start(**QUICK)
    await harness.sleep(5)
    assert harness.metric("hami_dra_gang_decisions_total", result="refused") <= 3
    assert await gates(harness) == {f"g{g}m{i}" for g in range(20) for i in range(5)}


@story_of()
async def test_gangs_run_by_priority_then_by_age(harness):
    await prepare(
        harness,
        *(member(f"{gang}{i}", gang, 3, priority=rank) for gang, rank in (("a", 0), ("b", 10)) for i in range(3)),
    )
    harness.start(**QUICK)
    await harness.bound("b0", "b1", "b2")
    assert await running(harness) == {"b0", "b1", "b2"}


# --- members ----------------------------------------------------------------------------------------------------------


@story_of()
async def test_members_above_min_count_follow_when_there_is_room(harness):
    await prepare(harness, pod("other", templates=["whole"]))
    harness.start(**QUICK)
    await harness.bound("other")
    await harness.add(kinds.POD, *(member(name, least=2) for name in FOUR))
    await harness.bound("m0", "m1", "m2")
    assert (await nodes(harness))["m3"] == ""
    await harness.delete_pod("other")
    await harness.bound("m3")


@story_of()
async def test_a_member_of_a_pod_group_without_room_does_not_hold_the_others(harness):
    """kube-scheduler queues a PodGroup as one: the gate of the one that is left must go as well."""
    await add_group(harness, "train", 2)
    await prepare(harness, pod("other", templates=["whole"]), *map(grouped, FOUR))
    harness.start(**QUICK)
    await harness.bound("other", "m0", "m1", "m2")
    await harness.sleep(2)
    assert await gates(harness) == set()


@story_of(scheduler=False)
async def test_a_member_of_a_pod_group_that_comes_during_the_commit(harness):
    """It is decided when the commit has ended: its gate would keep kube-scheduler from binding the others."""
    come = asyncio.Event()

    async def come_in_between(request):
        if request.label == "patch resourceclaims/status" and not come.is_set():
            come.set()
            await harness.add(kinds.POD, grouped("m3"))
            await harness.sleep(1)

    await add_group(harness, "train", 3)
    await prepare(harness, *map(grouped, FOUR[:3]))
    harness.cluster.hooks.append(come_in_between)
    harness.start(**QUICK)
    await until_holding(harness, *FOUR, seconds=10)
    await harness.sleep(1)
    assert await gates(harness) == set()


@story_of(scheduler=False)
async def test_a_commit_above_min_count_that_fails_costs_the_others_nothing(harness):
    """They have their devices and wait for kube-scheduler; the fourth is tried again, with pauses."""
    await add_group(harness, "train", 3)
    await prepare(harness, *map(grouped, FOUR[:3]))
    harness.start(**QUICK)
    await until_holding(harness, *FOUR[:3])

    async def never(request):
        if request.label == "patch resourceclaims/status" and request.name.startswith("m3"):
            raise Invalid("a webhook refuses it")

    harness.cluster.hooks.append(never)
    await harness.add(kinds.POD, grouped("m3"))
    await harness.sleep(30)
    assert await holders(harness) == set(FOUR[:3])
    assert harness.metric("hami_dra_gang_releases_total") == 0
    harness.cluster.hooks.clear()
    await until_holding(harness, *FOUR)


@story_of()
async def test_a_member_that_is_made_again_joins_those_that_run(harness):
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK)
    await harness.bound(*FOUR)
    await harness.delete_pod("m1")
    await harness.add(kinds.POD, member("m1"))
    await harness.bound("m1", seconds=10)


@story_of()
async def test_a_member_that_is_made_again_beside_finished_ones(harness):
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK)
    await harness.bound(*FOUR)
    for name in ("m0", "m2"):
        await harness.finish_pod(name)
    await harness.delete_pod("m1")
    await harness.add(kinds.POD, member("m1"))
    await harness.bound("m1", seconds=10)


@story_of(nodes=1, scheduler=False)
async def test_a_member_deleted_during_the_commit(harness):
    """The others give their devices back, keep their gates, and run once it is there again."""
    deleted = asyncio.Event()

    async def delete_in_between(request):
        if request.label == "patch resourceclaims/status" and not deleted.is_set():
            deleted.set()
            await harness.delete_pod("m0")
            await harness.sleep(0.1)  # the watch shows it

    await prepare(harness, member("m0", least=2), member("m1", least=2))
    harness.cluster.hooks.append(delete_in_between)
    harness.start(**QUICK)
    await deleted.wait()
    await harness.sleep(3)
    assert await gates(harness) == {"m1"}
    assert await holders(harness) == set()
    await harness.add(kinds.POD, member("m0", least=2))
    await until_holding(harness, "m0", "m1")
    assert await gates(harness) == set()


@pytest.mark.parametrize("verb", ["patch resourceclaims", "patch resourceclaims/status"])
def test_a_write_that_the_api_server_refuses(verb):
    """The gang is written as a whole or not at all, whichever write fails."""

    @story_of(scheduler=False)
    async def story(harness):
        async def never(request):
            if request.label == verb and (request.name.startswith("m3") or "m3" in request.name):
                raise Invalid("a webhook refuses it")

        await prepare(harness, *map(member, FOUR))
        harness.cluster.hooks.append(never)
        harness.start(**QUICK)
        await harness.sleep(5)
        assert await holders(harness) == set()
        assert await gates(harness) == set(FOUR)
        assert any("webhook" in note for note in await notes(harness, "BindingFailed"))
        harness.cluster.hooks.clear()
        await until_holding(harness, *FOUR)
        await harness.sleep(1)
        assert await gates(harness) == set()

    story()


@story_of()
async def test_many_gangs_through_one_slot(harness):
    """Gangs that are larger than the number of commits at once do not block each other."""
    await prepare(harness, *(member(f"{gang}{i}", gang, 4, templates=["half"]) for gang in "ab" for i in range(4)))
    harness.start(**QUICK, commits_at_once=1)
    await harness.bound(*(f"{gang}{i}" for gang in "ab" for i in range(4)), seconds=20)


# --- the group --------------------------------------------------------------------------------------------------------


@story_of()
async def test_a_pod_group_that_comes_after_its_pods(harness):
    await prepare(harness, *map(grouped, FOUR))
    harness.start(**QUICK)
    await harness.sleep(30)
    assert await gates(harness) == set(FOUR)
    assert {event["regarding"]["name"] for event in await harness.events("InvalidGang")} == set(FOUR)
    assert all("PodGroup default/train does not exist" in note for note in await notes(harness, "InvalidGang"))
    await add_group(harness, "train", 4)
    await harness.bound(*FOUR)


@story_of()
async def test_min_count_is_raised_above_the_members_and_lowered(harness):
    await add_group(harness, "train", 5)
    await prepare(harness, *map(grouped, FOUR))
    harness.start(**QUICK)
    await harness.sleep(20)
    assert await holders(harness) == set()
    assert all("4 of 5 members" in note for note in await notes(harness, "GangIncomplete"))
    patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
    await harness.cluster.patch(kinds.POD_GROUP, "train", patch, namespace=SPACE)
    await harness.bound(*FOUR, seconds=5)


@pytest.mark.parametrize("change", ["raised", "again"])
def test_the_group_changes_during_the_commit(change):
    """minCount is above what was placed, or it is another group by now: nothing is let go."""

    @story_of(scheduler=False)
    async def story(harness):
        changed = asyncio.Event()

        async def change_in_between(request):
            if request.label == "patch resourceclaims/status" and not changed.is_set():
                changed.set()
                if change == "raised":
                    patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}}
                    await harness.cluster.patch(kinds.POD_GROUP, "train", patch, namespace=SPACE)
                else:
                    await harness.cluster.delete(kinds.POD_GROUP, "train", namespace=SPACE)
                    await add_group(harness, "train", 4)
                await harness.sleep(0.1)  # the watch shows it

        await add_group(harness, "train", 4)
        await prepare(harness, *map(grouped, FOUR))
        harness.cluster.hooks.append(change_in_between)
        harness.start(**QUICK)
        await changed.wait()
        await harness.sleep(5)
        if change == "raised":
            assert await holders(harness) == set()
            assert await gates(harness) == set(FOUR)
        else:
            assert await gates(harness) == set()
            assert harness.metric("hami_dra_commits_total", result="stale") == 4
            assert harness.metric("hami_dra_gang_decisions_total", result="placed") == 2

    story()


@pytest.mark.parametrize("change", ["raised", "deleted"])
def test_the_group_changes_in_the_instant_of_the_last_write(change):
    """The watch shows it too late: it is read again before the gates are lifted."""

    @story_of(scheduler=False)
    async def story(harness):
        writes = []

        async def change_at_the_last(request):
            if request.label == "patch resourceclaims/status" and len(writes) < 4:
                writes.append(request.name)
                if len(writes) == 4 and change == "raised":
                    patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}}
                    await harness.cluster.patch(kinds.POD_GROUP, "train", patch, namespace=SPACE)
                elif len(writes) == 4:
                    await harness.cluster.delete(kinds.POD_GROUP, "train", namespace=SPACE)

        await add_group(harness, "train", 4)
        await prepare(harness, *map(grouped, FOUR))
        harness.cluster.hooks.append(change_at_the_last)
        harness.start(**QUICK)
        await harness.sleep(5)
        assert len(writes) == 4
        assert await holders(harness) == set()
        assert await gates(harness) == set(FOUR)

    story()


@story_of()
async def test_a_group_that_cannot_be_read_again_is_taken_as_the_watch_shows_it(harness):
    async def refuse_to_list(request):
        if request.verb == "list" and request.kind is kinds.POD_GROUP and await holders(harness):
            raise Unavailable("away")

    await add_group(harness, "train", 4)
    await prepare(harness, *map(grouped, FOUR))
    harness.cluster.hooks.append(refuse_to_list)
    harness.start(**QUICK)
    await harness.bound(*FOUR, seconds=5)


@story_of()
async def test_a_pod_group_without_a_gang_is_decided_pod_by_pod(harness):
    body = {"metadata": {"name": "train", "namespace": SPACE}, "spec": {"schedulingPolicy": {"basic": {}}}}
    await prepare(harness, *map(grouped, ("m0", "m1", "m2", "m3", "m4")))
    harness.start(**QUICK)
    await harness.sleep(2)
    assert await holders(harness) == set()
    await harness.add(kinds.POD_GROUP, body)
    await harness.bound(*FOUR)


@story_of()
async def test_members_of_different_schedulers(harness):
    await prepare(harness, *(member(name, least=3) for name in FOUR[:2]), member("m2", least=3, schedulerName="other"))
    harness.start(**QUICK)
    await harness.sleep(5)
    assert {event["regarding"]["name"] for event in await harness.events("InvalidGang")} == set(FOUR[:3])
    assert all("different schedulers" in note for note in await notes(harness, "InvalidGang"))
    assert await holders(harness) == set()


@story_of()
async def test_a_pod_that_leaves_its_gang_is_decided_alone(harness):
    await prepare(harness, *map(member, FOUR[:3]))
    harness.start(**QUICK)
    await harness.sleep(2)
    labels = {"pod-group.scheduling.sigs.k8s.io/name": None, "pod-group.scheduling.sigs.k8s.io/min-available": None}
    await harness.cluster.patch(kinds.POD, "m1", {"metadata": {"labels": labels}}, namespace=SPACE)
    await harness.bound("m1", seconds=5)
    assert await running(harness) == {"m1"}


# --- kube-scheduler ------------------------------------------------------------------------------------------------------


@story_of(nodes=3, scheduler=False)
async def test_a_member_is_refused_before_any_runs(harness):
    """It is decided again next to the others."""
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK)
    await until_holding(harness, *FOUR)
    before = (await harness.pod("m3")).status.nominated_node_name
    await refuse(harness, "m3")
    await harness.sleep(30)
    assert await holders(harness) == set(FOUR)
    assert (await harness.pod("m3")).status.nominated_node_name not in ("", before)


@story_of(scheduler=False)
async def test_a_member_is_refused_before_any_runs_and_finds_no_room_next_to_the_others(harness):
    """All of them are released, and the gang is decided again as a whole."""
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK)
    await until_holding(harness, *FOUR)
    before = (await harness.pod("m3")).status.nominated_node_name

    async def elsewhere():
        return (await harness.pod("m3")).status.nominated_node_name not in ("", before)

    await refuse(harness, "m3")
    await harness.until(elsewhere)
    await until_holding(harness, *FOUR)
    assert harness.metric("hami_dra_gang_releases_total") == 1


@story_of(scheduler=False)
async def test_a_member_is_refused_while_others_run(harness):
    """The third keeps its devices for a while, as kube-scheduler may bind it; those that run are not touched."""
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK, gang_hold=60.0, refusal_time=1000.0, refusal_time_most=1000.0)
    await until_holding(harness, *FOUR)
    await bind(harness, "m0", "m1")
    for name in ("n0", "n1"):
        await harness.patch_node(name, {"spec": {"unschedulable": False}})
    await refuse(harness, "m3")
    await until_holding(harness, "m0", "m1", "m2", seconds=40)
    held = harness.controller.held_for(GangKey("labels", SPACE, "train"))
    assert 0 < (held.until - harness.clock.wall()).total_seconds() <= 60
    await harness.sleep(50)
    assert await holders(harness) == {"m0", "m1", "m2"}
    await until_holding(harness, "m0", "m1", seconds=40)
    assert any("2 of 4 members" in note for note in await notes(harness, "GangIncomplete"))
    assert harness.controller.held_for(GangKey("labels", SPACE, "train")) is None
    await harness.add_node("n9")
    await until_holding(harness, *FOUR)
    await bind(harness, "m2", "m3")
    await harness.check_bound_pods_have_their_claims()
