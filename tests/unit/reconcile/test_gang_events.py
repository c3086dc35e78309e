"""What the members of a waiting gang are told: each of them, and not all at once."""

from collections import defaultdict

import pytest

from controller.reconcile.runtime.events import CONTROLLER
from hami_dra.api import kinds
from tests.support.gang_objects import NAME_LABEL
from tests.support.harness import SPACE, pod
from tests.unit.reconcile.gang_stories import QUICK, add_group, grouped, member, prepare, story_of

FOUR = ("m0", "m1", "m2", "m3")


async def told(harness):
    """By pod: its events of hami-dra, latest last."""
    found = defaultdict(list)
    for event in sorted(await harness.events(), key=lambda event: event["eventTime"]):
        if event["type"] == "Warning" and event["reportingController"] == CONTROLLER:
            found[event["regarding"]["name"]].append((event["reason"], event["note"]))
    return found


def waits(reason, note):
    return [(reason, f"waits with gang default/train: {note}")]


@story_of(nodes=1)
async def test_each_member_of_a_gang_without_room_is_told(harness):
    await prepare(harness, *map(member, FOUR))
    harness.start(**QUICK)
    await harness.sleep(8)
    found = await told(harness)
    whole = found.pop("m0")
    assert whole[0][1].startswith("gang default/train: 2 of 4 members fit at once")
    brief = waits("FilteringFailed", "2 of 4 members fit at once. Run: hami-dra explain m2 -n default")
    assert found == dict.fromkeys(FOUR[1:], brief)


@pytest.mark.parametrize(
    ("change", "reason", "note"),
    [
        ({"templates": ["no-such"]}, "GangIncomplete", "pod default/m2: spec.resourceClaims[t0]: "),
        ({"annotations": {"hami.io/node-scheduler-policy": "no-such"}}, "GangIncomplete", "pod default/m2: "),
    ],
)
def test_each_member_is_told_of_the_one_that_cannot_be_decided(change, reason, note):
    @story_of()
    async def story(harness):
        await prepare(harness, *map(member, ("m0", "m1", "m3")), member("m2", **change))
        harness.start(**QUICK)
        await harness.sleep(10)
        found = await told(harness)
        assert set(FOUR) <= set(found)
        for name in ("m0", "m1", "m3"):
            [(its_reason, its_note)] = found[name]
            assert (its_reason in (reason, "InvalidPolicy", "InvalidClaim"), note in its_note) == (True, True)

    story()


@story_of()
async def test_those_that_disagree_are_all_told(harness):
    await prepare(harness, member("m0", least=2), member("m1", least=3), member("m2", least=3))
    harness.start(**QUICK)
    await harness.sleep(5)
    found = await told(harness)
    assert {name: [reason for reason, _ in said] for name, said in found.items()} == {
        name: ["InvalidGang"] for name in FOUR[:3]
    }
    assert all("disagree about" in note for said in found.values() for _, note in said)


@story_of()
async def test_members_of_a_gang_that_soon_runs_are_told_nothing(harness):
    await add_group(harness, "train", 4)
    await prepare(harness, pod("first", templates=["whole"]), *map(grouped, FOUR))
    harness.start(**QUICK)
    await harness.sleep(1)
    await harness.delete_pod("first")
    await harness.bound(*FOUR)
    await harness.sleep(60)
    assert set(await told(harness)) <= {"m0"}


@story_of()
async def test_a_large_gang_is_told_slowly_and_only_what_is_new(harness):
    """300 members of which one is missing: a few events a second, each member once, others not later than without it."""
    await prepare(harness, *(member(f"m{i:04d}", least=301) for i in range(300)))
    harness.start(**QUICK)
    await harness.sleep(20)
    assert 8 <= len(await told(harness)) <= 150
    await harness.add(kinds.POD, pod("other", templates=["whole"], annotations={"hami.io/node-scheduler-policy": "x"}))
    await harness.sleep(1)
    assert "other" in await told(harness)
    await harness.sleep(60)
    found = await told(harness)
    found.pop("other")
    assert len(found) == 300
    assert max(map(len, found.values())) == 1
    await harness.sleep(600)
    assert harness.cluster.requests["create events"] <= 310


@story_of()
async def test_members_that_still_wait_are_told_again_before_the_event_expires(harness):
    """API servers keep an event for an hour."""
    await prepare(harness, *map(member, FOUR[:3]))
    harness.start(**QUICK)
    await harness.sleep(4000)
    found = await told(harness)
    assert len(found["m1"]) == len(found["m2"]) == 3


@story_of()
async def test_a_new_reason_is_told_as_well(harness):
    await prepare(harness, pod("other", templates=["whole"]), *map(member, FOUR[:3]))
    harness.start(**QUICK)
    await harness.sleep(10)
    await harness.add(kinds.POD, member("m3"))
    await harness.sleep(10)
    found = await told(harness)
    assert [reason for reason, _ in found["m1"]] == ["GangIncomplete", "FilteringFailed"]
    labels = {"metadata": {"labels": {NAME_LABEL: None}}}
    for name in FOUR[1:]:
        await harness.cluster.patch(kinds.POD, name, labels, namespace=SPACE)
