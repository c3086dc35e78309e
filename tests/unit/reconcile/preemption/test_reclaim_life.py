"""A namespace gets what it is owed by a ResourceQuota, in virtual time: once, from those that have more, and it stays."""

from contextlib import suppress

import pytest

from controller.decide import decide
from controller.reconcile.preemption import Preemptor
from hami_dra.api import kinds, names
from hami_dra.api.podstate import is_live
from hami_dra.kube.protocol import NotFound
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import device_class, pod, template
from tests.support.harness import play as play_scene
from tests.support.mortal import Mortal
from tests.support.quotas import guarantee

OURS = "nvidia.hami.io"
MANAGED = {"managed": frozenset({OURS}), "own_drivers": frozenset({OURS})}
ON = {"quiet_time": 0.0, "probe": False, "decide": decide, "preemption": True, "save_after": 0.0, **MANAGED}
CARD = 12
"""GiB of a card's 16: two do not fit on one."""
SOON = 310
"""Seconds after which pods have run long enough to be reclaimed."""


def play(story, **options):
    """A node with four NVIDIA cards."""

    async def with_class(harness):
        await harness.add(kinds.DEVICE_CLASS, device_class("ours", OURS))
        await story(harness)

    cards = {"cards": 4, "driver": OURS}
    play_scene(with_class, **{"nodes": 1, "graceful": True, "node_options": cards, **ON, **options})


def in_space(space, body):
    body["metadata"]["namespace"] = space
    return body


async def add(harness, space, name, *, cards=1, priority=0, in_gang=None, **options):
    await harness.add(
        kinds.RESOURCE_CLAIM_TEMPLATE, in_space(space, template(name, CARD, count=cards, device_class="ours"))
    )
    body = pod(name, templates=[name], gated=True, cpu="1m", priority=priority, **options)
    await harness.add(kinds.POD, in_space(space, in_labelled_group(body, *in_gang) if in_gang else body))


async def fill(harness, space, number, *, wait=SOON, **options):
    pod_names = [f"{space}-{each}" for each in range(number)]
    for name in pod_names:
        await add(harness, space, name, **options)
    await harness.bound(*pod_names)
    await harness.sleep(wait)


async def owe(harness, space, cards, name="guarantee"):
    await harness.add(kinds.RESOURCE_QUOTA, guarantee({"nvidia.com/gpu": cards}, name, space))


async def owe_instead(harness, space, cards):
    patch = {"spec": {"hard": {"limits.nvidia.com/gpu": str(cards)}}}
    await harness.cluster.patch(kinds.RESOURCE_QUOTA, "guarantee", patch, namespace=space)


async def running(harness):
    """Namespace → number of its pods that run and do not terminate."""
    spaces = [each.metadata.namespace for each in await harness.pods() if each.spec.node_name and is_live(each)]
    return {space: spaces.count(space) for space in sorted({*spaces})}


def evictions(harness):
    return harness.metric("hami_dra_evictions_total")


@pytest.mark.parametrize("priority", [0, 1000])
def test_a_namespace_below_its_guarantee_gets_it_and_no_more(priority):
    async def story(harness):
        await owe(harness, "poor", 2)
        await owe(harness, "rich", 1)
        await fill(harness, "rich", 4, priority=priority)
        for number in range(3):
            await add(harness, "poor", f"poor-{number}")
        await harness.bound("poor-0", "poor-1", seconds=20)
        await harness.sleep(700)
        assert await running(harness) == {"poor": 2, "rich": 2}
        assert evictions(harness) == 2
        notes = {each["regarding"]["name"]: each["note"] for each in await harness.events("Preempting")}
        assert notes["poor-0"].startswith(
            "evicts 1 pod on node n0, to take back what its namespace is owed: "
            "it has 0 of limits.nvidia.com/gpu and is owed 2. The pod keeps its scheduling gate"
        )
        assert "it has 1 of limits.nvidia.com/gpu and is owed 2" in notes["poor-1"]
        said = sorted(each["note"].partition(" on node n0: ")[2] for each in await harness.events("Preempted"))
        assert said == [
            f"its namespace rich has more than its guarantee: it has {had} of limits.nvidia.com/gpu and is owed 1"
            for had in (3, 4)
        ]
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story)


def test_nobody_is_reclaimed_before_its_time_and_the_unit_is_planned_for_then():
    async def story(harness):
        await owe(harness, "poor", 1)
        await fill(harness, "rich", 4, wait=0)
        await add(harness, "poor", "poor")
        await harness.sleep(280)
        assert evictions(harness) == 0
        await harness.bound("poor", seconds=40)
        assert await running(harness) == {"poor": 1, "rich": 3}
        (said,) = await harness.events("Preempted")
        assert said["note"].endswith(" on node n0: its namespace rich has no guarantee of that")

    play(story, reconsider=1e9)


def test_off_takes_nothing_back():
    async def story(harness):
        await owe(harness, "poor", 2)
        await fill(harness, "rich", 4)
        await add(harness, "poor", "poor")
        await harness.sleep(400)
        assert await running(harness) == {"rich": 4}

    play(story, preemption=False)


def test_a_guarantee_that_is_made_or_raised_later_helps_a_unit_that_waits():
    async def story(harness):
        await fill(harness, "rich", 4)
        for number in range(2):
            await add(harness, "poor", f"poor-{number}")
        await harness.sleep(30)
        assert evictions(harness) == 0
        await owe(harness, "poor", 1)
        await harness.sleep(20)
        assert await running(harness) == {"poor": 1, "rich": 3}
        await owe_instead(harness, "poor", 2)
        await harness.bound("poor-0", "poor-1", seconds=20)
        assert evictions(harness) == 2

    play(story, reconsider=1e9)


def test_a_limit_that_becomes_a_guarantee_by_its_label_lets_pods_go_on():
    async def story(harness):
        limit = guarantee({"nvidia.com/gpu": 1}, namespace="poor")
        del limit["metadata"]["labels"]
        await harness.add(kinds.RESOURCE_QUOTA, limit)
        await fill(harness, "poor", 1, wait=0)
        await add(harness, "poor", "late")
        await harness.sleep(30)
        assert await running(harness) == {"poor": 1}
        patch = {"metadata": {"labels": {names.QUOTA_LABEL: names.GUARANTEE}}}
        await harness.cluster.patch(kinds.RESOURCE_QUOTA, "guarantee", patch, namespace="poor")
        await harness.bound("late", seconds=20)

    play(story, reconsider=1e9, preemption=False)


def test_units_of_one_moment_together_leave_the_others_their_guarantee():
    """Victims that are chosen and not gone yet count as gone, however long they take."""

    async def story(harness):
        await owe(harness, "poor", 4)
        await owe(harness, "rich", 3)
        await fill(harness, "rich", 4)
        for number in range(4):
            patch = {"metadata": {"finalizers": ["example.com/slow"]}}
            await harness.cluster.patch(kinds.POD, f"rich-{number}", patch, namespace="rich")
        for number in range(3):
            await add(harness, "poor", f"poor-{number}")
        await harness.sleep(30)
        assert evictions(harness) == 1
        for number in range(4):
            patch = {"metadata": {"finalizers": None}}
            await harness.cluster.patch(kinds.POD, f"rich-{number}", patch, namespace="rich")
        await harness.sleep(700)
        assert await running(harness) == {"poor": 1, "rich": 3}
        assert evictions(harness) == 1

    play(story)


def test_two_namespaces_take_from_a_third_and_never_from_each_other():
    async def story(harness):
        await owe(harness, "one", 2)
        await owe(harness, "two", 2)
        await fill(harness, "rich", 4, priority=1000)
        for number in range(4):
            await add(harness, "one", f"one-{number}")
            await add(harness, "two", f"two-{number}", priority=10)
        await harness.sleep(60)
        assert await running(harness) == {"one": 2, "two": 2}
        await harness.sleep(3600)
        assert await running(harness) == {"one": 2, "two": 2}
        assert evictions(harness) == 4

    play(story)


async def replace_victims(harness, spaces, seconds):
    """Do what workloads do: make a pod again that was evicted."""
    for _ in range(int(seconds / 20)):
        await harness.sleep(20)
        for space, (wanted, options) in spaces.items():
            there = [each for each in await harness.pods() if each.metadata.namespace == space]
            for _ in range(wanted - len(there)):
                options["made"] = options.get("made", 0) + 1
                await add(harness, space, f"{space}-again-{options['made']}", priority=options["priority"])


def test_nothing_flaps_while_workloads_make_their_pods_again():
    """Priority and guarantees in turn: what was taken back is not taken by priority, and nobody takes it back again."""

    async def story(harness):
        await owe(harness, "poor", 2)
        await owe(harness, "mid", 1)
        await fill(harness, "rich", 4, priority=1000)
        for number in range(3):
            await add(harness, "poor", f"poor-{number}")
        await add(harness, "mid", "mid-0", priority=500)
        await add(harness, "mid", "mid-1", priority=500)
        spaces = {
            "rich": (4, {"priority": 1000}),
            "poor": (3, {"priority": 0}),
            "mid": (2, {"priority": 500}),
        }
        await replace_victims(harness, spaces, 4000)
        assert await running(harness) == {"mid": 1, "poor": 2, "rich": 1}
        assert evictions(harness) == 3
        await harness.check_never_overcommitted()

    play(story)


@pytest.mark.parametrize("later", [0, 3600])
def test_a_place_that_was_taken_back_is_lost_to_no_priority(later):
    """Neither while its victims terminate, nor afterwards."""

    async def story(harness):
        await owe(harness, "poor", 1)
        await fill(harness, "rich", 4)
        for number in range(4):
            patch = {"metadata": {"finalizers": [] if later else ["example.com/slow"]}}
            await harness.cluster.patch(kinds.POD, f"rich-{number}", patch, namespace="rich")
        await add(harness, "poor", "poor", cards=1)
        await harness.sleep(5 + later)
        assert evictions(harness) == 1
        for number in range(4):
            await add(harness, "other", f"other-{number}", priority=10_000)
        await harness.sleep(20)
        for number in range(4):
            patch = {"metadata": {"finalizers": None}}
            with suppress(NotFound):
                await harness.cluster.patch(kinds.POD, f"rich-{number}", patch, namespace="rich")
        await harness.bound("poor", seconds=30)
        await harness.sleep(120)
        assert await running(harness) == {"other": 3, "poor": 1}

    play(story)


def test_a_gang_is_taken_back_for_and_as_a_whole_or_not_at_all():
    async def story(harness):
        await owe(harness, "poor", 3)
        await fill(harness, "rich", 4)
        for number in range(4):
            await add(harness, "poor", f"poor-{number}", in_gang=("large", 4))
        await harness.sleep(60)
        assert evictions(harness) == 0
        for number in range(3):
            await add(harness, "poor", f"train-{number}", in_gang=("train", 3))
        await harness.bound(*(f"train-{number}" for number in range(3)), seconds=30)
        assert await running(harness) == {"poor": 3, "rich": 1}
        assert evictions(harness) == 3

    play(story)


def test_what_is_not_evicted_yet_is_planned_again_when_a_guarantee_changes():
    """The second of two evictions fails for now; meanwhile the victims' namespace is owed what it still has."""

    async def story(harness):
        await owe(harness, "poor", 2)
        await fill(harness, "rich", 4)
        asked = []

        async def evict(*arguments, real=harness.cluster.evict, **options):
            asked.append(arguments[0])
            if len(asked) == 1:
                result = await real(*arguments, **options)
                await owe(harness, "rich", 3)
                await harness.sleep(1)
                return result
            return await real(*arguments, **options)

        harness.cluster.evict = evict
        await add(harness, "poor", "poor", cards=2)
        await harness.sleep(600)
        assert len(asked) == 1
        assert await running(harness) == {"rich": 3}

    play(story)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_leader_that_dies_between_evictions_costs_no_more_than_was_planned(at, before):
    async def story(harness):
        await owe(harness, "poor", 2)
        await owe(harness, "rich", 2)
        first = harness.start(**ON)
        await fill(harness, "rich", 4)
        await harness.stop(first)
        await add(harness, "poor", "poor", cards=2)
        mortal = Mortal(harness.cluster, at, before=before)
        task = harness.start(through=mortal, **ON)
        await harness.sleep(20)
        await harness.stop(task)
        harness.start(**ON)
        await harness.bound("poor", seconds=200)
        await harness.sleep(60)
        assert await running(harness) == {"poor": 1, "rich": 2}
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story, controller=False)


async def let_go(harness, slowly):
    """Let the pods of `rich` terminate slowly from now on, or at once."""
    for each in await harness.pods():
        if each.metadata.namespace == "rich":
            patch = {"metadata": {"finalizers": ["example.com/slow"] if slowly else None}}
            with suppress(NotFound):
                await harness.cluster.patch(kinds.POD, each.metadata.name, patch, namespace="rich")


def test_a_new_leader_loses_the_place_to_no_successor_of_higher_priority():
    async def story(harness):
        await owe(harness, "poor", 1)
        first = harness.start(**ON)
        await fill(harness, "rich", 4, priority=1000)
        await let_go(harness, slowly=True)
        await add(harness, "poor", "poor")
        await harness.sleep(10)
        assert evictions(harness) == 1
        await harness.stop(first)
        harness.start(**ON)
        await harness.sleep(20)
        await add(harness, "rich", "successor", priority=1000)
        await harness.sleep(20)
        await let_go(harness, slowly=False)
        await harness.bound("poor", seconds=20)
        await harness.sleep(900)
        assert await running(harness) == {"poor": 1, "rich": 3}
        assert len(await harness.events("Preempted")) == 1

    play(story, controller=False)


def test_within_a_namespace_priority_goes_before():
    async def story(harness):
        await owe(harness, "poor", 1)
        await fill(harness, "rich", 4)
        await let_go(harness, slowly=True)
        await add(harness, "poor", "first")
        await harness.sleep(5)
        await add(harness, "poor", "urgent", priority=10)
        await harness.sleep(5)
        await let_go(harness, slowly=False)
        await harness.bound("urgent", seconds=20)
        await harness.sleep(600)
        assert await running(harness) == {"poor": 1, "rich": 3}
        assert not (await harness.cluster.get(kinds.POD, "first", "poor")).spec.node_name

    play(story)


def test_what_is_reserved_for_a_namespace_is_not_what_it_has():
    """A place that is reserved for one of its units, on cards of others, neither spares it a victim nor costs it its claim."""

    async def story(harness):
        await owe(harness, "rich", 4)
        await owe(harness, "poor", 1)
        await fill(harness, "rich", 4)
        await add(harness, "rich", "large", cards=4)
        await harness.sleep(60)
        assert len(await harness.events("PlaceReserved")) == 1
        await add(harness, "poor", "poor")
        await harness.sleep(60)
        assert evictions(harness) == 0
        assert await running(harness) == {"rich": 4}

    play(story, save_after=20.0)


def test_a_pod_may_say_how_long_it_runs_at_least():
    async def story(harness):
        await owe(harness, "poor", 4)
        await fill(harness, "rich", 1, wait=0, annotations={names.MIN_RUNTIME: "20s"})
        await fill(harness, "other", 3, wait=0, annotations={names.MIN_RUNTIME: "2h"})
        for number in range(4):
            await add(harness, "poor", f"poor-{number}")
        await harness.sleep(15)
        assert evictions(harness) == 0
        await harness.sleep(3000)
        assert await running(harness) == {"other": 3, "poor": 1}

    play(story)


async def reserve(harness, priority, space="other", cards=4):
    """A place of all cards, for which pods of an unknown end are waited for."""
    await add(harness, space, "large", cards=cards, priority=priority)
    await harness.sleep(35)
    assert len(await harness.events("PlaceReserved")) == 1


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("priority", [0, 1000])
def test_a_namespace_gets_what_it_is_owed_in_spite_of_a_place_that_is_reserved_for_one_that_is_not(priority, free):
    """Whether the devices are free by now, or held by pods that can be reclaimed."""

    async def story(harness):
        await owe(harness, "poor", 1)
        await fill(harness, "rich", 4, priority=priority, annotations={names.MIN_RUNTIME: "0s"})
        await reserve(harness, priority)
        if free:
            await harness.cluster.delete(kinds.POD, "rich-0", namespace="rich")
            await harness.sleep(5)
        for number in range(2):
            await add(harness, "poor", f"poor-{number}")
        await harness.bound("poor-0", seconds=20)
        (lost,) = await harness.events("PlaceGivenUp")
        assert "a unit whose namespace is owed it takes its place" in lost["note"]
        await harness.sleep(900)
        assert await running(harness) == {"poor": 1, "rich": 3}
        assert evictions(harness) == (0 if free else 1)
        await harness.check_never_overcommitted()

    play(story, save_after=30.0)


@pytest.mark.parametrize("preemption", [True, False])
def test_a_reserved_place_stays_if_its_namespace_is_owed_it_or_nothing_is_taken_back(preemption):
    async def story(harness):
        await owe(harness, "poor", 1)
        if preemption:
            await owe(harness, "other", 4)
        await fill(harness, "rich", 4, annotations={names.PREEMPTIBLE: "false"})
        await reserve(harness, 0)
        await harness.cluster.delete(kinds.POD, "rich-0", namespace="rich")
        await harness.sleep(5)
        await add(harness, "poor", "poor")
        await harness.sleep(300)
        assert await running(harness) == {"rich": 3}
        assert await harness.events("PlaceGivenUp") == []

    play(story, save_after=30.0, preemption=preemption)


@pytest.mark.parametrize("pause", [1.0, 4.0, 13.0])
def test_a_guarantee_that_changes_again_and_again_disturbs_nobody_else(monkeypatch, pause):
    """Units are planned for again at once, then after a rest for all that has changed; the last change counts."""
    again = []
    real = Preemptor._more_may_go
    monkeypatch.setattr(Preemptor, "_more_may_go", lambda preemptor: (again.append(1), real(preemptor)))

    async def story(harness):
        await fill(harness, "rich", 4)
        await owe(harness, "noisy", 1)
        await harness.sleep(20)
        await let_go(harness, slowly=True)
        await add(harness, "calm", "calm", priority=10)
        await add(harness, "poor", "poor")
        await harness.sleep(5)
        assert evictions(harness) == 1
        again.clear()
        changes = int(36 / pause)
        for number in range(changes):
            await owe_instead(harness, "noisy", 2 + number % 2)
            await harness.sleep(pause)
        assert min(changes, 4) <= len(again) <= min(changes, 5)
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0
        await owe(harness, "poor", 1)
        await harness.sleep(12)
        assert evictions(harness) == 2
        await let_go(harness, slowly=False)
        await harness.bound("calm", "poor", seconds=20)

    play(story, reconsider=1e9)
