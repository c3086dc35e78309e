"""For which members of a gang others are evicted: for its minimum at once, then for one after the other, as for pods.

`hami-dra simulate` names the same victims for the same objects.
"""

import copy

import pytest

from controller.decide import decide
from controller.insight.simulation import SimulationSettings
from hami_dra.api import kinds
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import play as play_scene
from tests.support.harness import pod, template
from tests.support.preemption.planning import name_of, simulated

ON = {"quiet_time": 0.0, "probe": False, "decide": decide, "preemption": True}
BIG = 12
"""GiB of a card's 16: two do not fit on one."""
SLOW = {"metadata": {"finalizers": ["example.com/slow"]}}
ENDS = {"metadata": {"finalizers": None}}
READ = (
    kinds.NODE, kinds.RESOURCE_SLICE, kinds.DEVICE_CLASS, kinds.RESOURCE_CLAIM_TEMPLATE, kinds.RESOURCE_CLAIM, kinds.POD,
)  # fmt: skip


def play(story, **options):
    """A node with four cards."""

    async def with_template(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", BIG))
        await story(harness)

    play_scene(with_template, **{"nodes": 1, "graceful": True, "node_options": {"cards": 4}, **ON, **options})


def one(name, priority, *, templates=("big",)):
    return pod(name, templates=templates, gated=True, cpu="1m", priority=priority)


async def add_low(harness, number, priority=0):
    names = [f"low-{each}" for each in range(number)]
    await harness.add(kinds.POD, *(one(name, priority) for name in names))
    await harness.bound(*names)


async def add_members(harness, *names, least=2, priority=1000, **options):
    await harness.add(kinds.POD, *(in_labelled_group(one(name, priority, **options), "team", least) for name in names))


async def victims_by_simulation(harness):
    """Names of the pods that have to go by `hami-dra simulate` for the objects as they are now."""
    objects = []
    for kind in READ:
        for each in (await harness.cluster.list(kind)).items:
            raw = copy.deepcopy(await harness.cluster.get_raw(kind, each.metadata.name, each.metadata.namespace))
            objects.append({"apiVersion": kind.api_version, "kind": kind.name, **raw})
    report = simulated(objects, SimulationSettings(preemption=True))
    return {name_of(victim) for each in report.preemptions or () for victim in each["victims"]}


async def evicted(harness):
    return {each["regarding"]["name"] for each in await harness.events("Preempted")}


async def is_evicted(harness, number):
    async def so_many():
        return len(await evicted(harness)) == number

    await harness.until(so_many, seconds=60)


async def slowly(harness, number):
    for each in range(number):
        await harness.cluster.patch(kinds.POD, f"low-{each}", SLOW, namespace="default")


@pytest.mark.parametrize("more", [1, 2])
def test_members_beyond_the_minimum_preempt_one_after_the_other(more):
    async def story(harness):
        await add_low(harness, 2)
        await add_members(harness, "a", "b")
        await harness.bound("a", "b")
        await slowly(harness, 2)
        names = [f"more-{number}" for number in range(more)]
        first = harness.controller
        await add_members(harness, *names)
        for number in range(1, more + 1):
            await is_evicted(harness, number)
            await harness.sleep(20)
            assert len(await evicted(harness)) == number, "the next one waits until the one before has its place"
            (victim,) = [each for each in await harness.pods() if each.metadata.deletion_timestamp is not None]
            await harness.cluster.patch(kinds.POD, victim.metadata.name, ENDS, namespace="default")
        await harness.bound(*names, seconds=60)
        assert harness.controller is first
        assert harness.metric("hami_dra_evictions_total") == more
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story)


@pytest.mark.parametrize("priority", [0, 1000])
@pytest.mark.parametrize("runs", [0, 1, 2, 3])
def test_the_controller_evicts_in_the_end_whom_the_simulation_names(runs, priority):
    """Gangs of which so many run, and two more are asked for."""

    async def story(harness):
        members, least = [f"m-{number}" for number in range(runs)], 2 if runs != 1 else 1
        if runs:
            await add_members(harness, *members, least=least, priority=priority)
            await harness.bound(*members)
        await add_low(harness, 4 - runs)
        task = harness.controllers[0]
        await harness.stop(task)
        await add_members(harness, *(f"more-{number}" for number in range(2)), least=least, priority=priority)
        await harness.sleep(5)
        named = await victims_by_simulation(harness)
        assert bool(named) == (priority > 0)
        harness.start(**ON)
        await harness.sleep(120)
        assert len(await evicted(harness)) == len(named)
        assert len([each for each in await harness.pods() if each.spec.node_name]) == 4

    play(story)


def test_a_gang_with_a_member_that_needs_no_device_preempts_for_the_others():
    async def story(harness):
        await add_low(harness, 4)
        await add_members(harness, "launcher", least=3, templates=())
        await add_members(harness, "a", "b", least=3)
        await harness.bound("launcher", "a", "b", seconds=60)
        assert harness.metric("hami_dra_evictions_total") == 2

    play(story)


async def let_low_end(harness):
    for number in range(2):
        await harness.cluster.patch(kinds.POD, f"low-{number}", ENDS, namespace="default")


@pytest.mark.parametrize("gone", ["first", "second"])
def test_a_place_for_one_more_member_is_given_back_or_kept_as_members_go(gone):
    """The member for which a pod terminates is deleted, or another one that waits."""

    async def story(harness):
        await add_low(harness, 2)
        await add_members(harness, "a", "b")
        await harness.bound("a", "b")
        await slowly(harness, 2)
        await add_members(harness, "first")
        await is_evicted(harness, 1)
        await add_members(harness, "second")
        await harness.sleep(5)
        await harness.delete_pod(gone)
        await harness.sleep(5)
        (left,) = {"first", "second"} - {gone}
        await let_low_end(harness)
        await harness.bound(left, seconds=60)
        assert harness.metric("hami_dra_evictions_total") == 1
        await harness.check_nothing_leaked()

    play(story)


def test_a_gang_that_falls_below_its_minimum_gets_the_place_of_the_one_beyond():
    async def story(harness):
        await add_low(harness, 2)
        await add_members(harness, "a", "b")
        await harness.bound("a", "b")
        await slowly(harness, 2)
        await add_members(harness, "more")
        await is_evicted(harness, 1)
        await harness.delete_pod("b")
        await let_low_end(harness)
        await harness.bound("more", seconds=60)
        await harness.check_nothing_leaked()

    play(story)


def test_no_place_is_reserved_for_a_member_beyond_the_minimum():
    async def story(harness):
        await add_low(harness, 2, priority=1000)
        await add_members(harness, "a", "b")
        await harness.bound("a", "b")
        await add_members(harness, "more")
        await harness.sleep(120)
        assert await harness.events("PlaceReserved") == []

    play(story, save_after=30.0)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_no_member_is_evicted_for_another_one_of_its_gang(least):
    """Beyond the minimum, or for one that it lacks; members that state different priorities."""

    async def story(harness):
        members = [f"m-{number}" for number in range(3)]
        await add_members(harness, *members, least=least, priority=0)
        await add_low(harness, 1, priority=2000)
        await harness.bound(*members)
        if least == 3:
            await harness.delete_pod("m-2")
            await harness.sleep(5)
            await harness.add(kinds.POD, one("takes", 2000))
            await harness.bound("takes")
        await add_members(harness, "more", least=least, priority=1000)
        await harness.sleep(120)
        assert harness.metric("hami_dra_evictions_total") == 0

    play(story)
