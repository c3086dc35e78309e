"""A unit that has waited for long gets the place that is free soonest, whoever comes meanwhile; nobody is evicted."""

from datetime import datetime

import pytest

from controller.decide import decide
from controller.views.overview import decoded
from hami_dra.api import kinds, names
from hami_dra.api.podstate import is_finished
from hami_dra.kube.lease_timings import Timings
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import claim, pod, template
from tests.support.harness import play as play_scene

WAIT = 60.0
CARD = 12
"""GiB of a card's 16: two do not fit on one."""


def play(story, **options):
    defaults = {"nodes": 1, "node_options": {"cards": 4}, "save_after": WAIT, "quiet_time": 0.0, "probe": False}
    play_scene(story, **{**defaults, "decide": decide, **options})


async def add(harness, name, *, cards=1, **options):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(name, CARD, count=cards))
    await harness.add(kinds.POD, pod(name, templates=[name], gated=True, cpu="1m", **options))


class Stream:
    """A pod of one card every ten seconds; each ends a minute after it got one."""

    def __init__(self, harness, **options):
        self.harness, self.options = harness, options
        self.number, self.began = 0, {}

    async def go_on(self, seconds):
        for _ in range(int(seconds / 10)):
            await add(self.harness, f"small-{self.number}", **self.options)
            self.number += 1
            await self.harness.sleep(10)
            now = self.harness.clock.monotonic()
            for each in await self.harness.pods():
                name = each.metadata.name
                runs = name.startswith("small") and each.spec.node_name and not is_finished(each)
                if runs and now - self.began.setdefault(name, now) > 50:
                    await self.harness.finish_pod(name)


async def large_pod(harness, **options):
    await add(harness, "large", cards=4, **options)
    return ["large"]


async def large_gang(harness, **options):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("member", CARD))
    names = [f"member-{number}" for number in range(4)]
    members = [pod(name, templates=["member"], gated=True, cpu="1m", **options) for name in names]
    await harness.add(kinds.POD, *(in_labelled_group(member, "team", 4) for member in members))
    return names


@pytest.mark.parametrize("large", [large_pod, large_gang])
@pytest.mark.parametrize("priority", [0, 1000])
def test_a_large_job_beside_a_stream_of_small_ones_runs_after_its_wait_and_the_longest_of_them(large, priority):
    async def story(harness):
        small = Stream(harness)
        await small.go_on(100)
        names = await large(harness, priority=priority)
        await small.go_on(WAIT + 61 + 20)
        for name in names:
            assert await harness.node_of(name), name
        (said,) = [each for each in await harness.events("PlaceReserved") if each["regarding"]["name"] in names]
        assert (
            "its place on node n0 is reserved: its devices go to no pod of the same or lower priority" in said["note"]
        )
        assert harness.metric("hami_dra_preemptions_total", result="placed") >= 1
        assert harness.metric("hami_dra_evictions_total") == 0
        await harness.check_never_overcommitted()

    play(story)


def test_control_without_reservations_the_large_job_starves():
    async def story(harness):
        small = Stream(harness)
        await small.go_on(100)
        await large_pod(harness)
        await small.go_on(600)
        assert not await harness.node_of("large")

    play(story, save_after=0.0)


def test_pods_that_end_before_go_there_meanwhile():
    async def story(harness):
        await add(harness, "long", cards=2, activeDeadlineSeconds=1800)
        await harness.bound("long")
        await add(harness, "large", cards=4)
        await harness.sleep(WAIT + 5)
        (said,) = await harness.events("PlaceReserved")
        assert "once 1 pod (long) there has ended, at 2026-01-01T00:30:" in said["note"]
        await add(harness, "longer", activeDeadlineSeconds=3600)
        await add(harness, "endless")
        await add(harness, "short", activeDeadlineSeconds=600)
        await harness.bound("short", seconds=10)
        assert not await harness.node_of("longer")
        assert not await harness.node_of("endless")
        await harness.finish_pod("long")
        await harness.sleep(5)
        assert not await harness.node_of("large")
        await harness.finish_pod("short")
        await harness.bound("large", seconds=10)
        await harness.check_never_overcommitted()
        await harness.check_nothing_leaked()

    play(story)


def test_the_node_that_is_free_soonest_is_reserved_and_devices_that_are_not_needed_are_free():
    async def story(harness):
        for node, deadline in (("n0", None), ("n1", 7200), ("n2", 1800)):
            options = {"activeDeadlineSeconds": deadline} if deadline else {}
            await add(harness, f"on-{node}", cards=3, nodeName="", nodeSelector={"row": node}, **options)
        await harness.bound("on-n0", "on-n1", "on-n2")
        await add(harness, "large", cards=3)
        await harness.sleep(WAIT + 5)
        (said,) = await harness.events("PlaceReserved")
        assert "on node n2 " in said["note"]
        for number in range(3):
            await add(harness, f"small-{number}")
        await harness.bound("small-0", "small-1", "small-2", seconds=10)
        await harness.finish_pod("on-n2")
        await harness.bound("large", seconds=10)
        assert await harness.node_of("large") == "n2"

    async def labelled(harness):
        for name in ("n0", "n1", "n2"):
            await harness.add_node(name, cards=4, labels={"row": name})
        await story(harness)

    play(labelled, nodes=0)


def test_one_of_higher_priority_takes_what_is_reserved():
    async def story(harness):
        await add(harness, "runs", cards=3)
        await harness.bound("runs")
        await add(harness, "large", cards=4, priority=5)
        await harness.sleep(WAIT + 5)
        await add(harness, "equal", priority=5)
        await harness.sleep(5)
        assert not await harness.node_of("equal")
        await add(harness, "higher", priority=6)
        await harness.bound("higher", seconds=10)
        (lost,) = await harness.events("PlaceGivenUp")
        assert "is reserved no longer: a unit of higher priority takes its place" in lost["note"]

    play(story)


def test_room_elsewhere_is_taken_and_the_place_given_back():
    async def story(harness):
        await add(harness, "runs", cards=3)
        await harness.bound("runs")
        await add(harness, "large", cards=4)
        await harness.sleep(WAIT + 5)
        await harness.add_node("n1", cards=4)
        await harness.bound("large", seconds=10)
        assert await harness.node_of("large") == "n1"
        await add(harness, "small")
        await harness.bound("small", seconds=10)
        await harness.check_nothing_leaked()

    play(story)


def test_a_place_that_cannot_come_true_is_given_up_with_the_reason():
    async def story(harness):
        await add(harness, "runs", cards=3)
        await harness.bound("runs")
        await add(harness, "large", cards=4)
        await harness.sleep(WAIT + 5)
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await harness.sleep(5)
        (lost,) = await harness.events("PlaceGivenUp")
        assert "is reserved no longer: the unit does not fit there any more" in lost["note"]

    play(story)


def test_it_ends_after_an_hour_and_others_have_their_turn():
    async def story(harness):
        await add(harness, "runs", cards=3)
        await harness.bound("runs")
        await add(harness, "large", cards=4)
        await harness.sleep(WAIT + 5)
        await add(harness, "small")
        await harness.sleep(3_550)
        assert not await harness.node_of("small")
        await harness.bound("small", seconds=60)
        (lost,) = await harness.events("PlaceGivenUp")
        assert "it was not free in time" in lost["note"]
        (said,) = await harness.events("PlaceReserved")
        until = datetime.fromisoformat(said["note"].rpartition(" and reserved until ")[2])
        assert abs((until - datetime.fromisoformat(lost["eventTime"])).total_seconds()) < 5

    play(story)


@pytest.mark.parametrize("is_gang", [False, True])
def test_pods_that_have_devices_and_are_not_bound_yet_are_expected_to_end(is_gang):
    """Next to a busy stream there is always one."""

    async def story(harness):
        if is_gang:
            await harness.add(
                kinds.RESOURCE_CLAIM_TEMPLATE, *(template(f"t{cards}", CARD, count=cards) for cards in (1, 3))
            )
            both = [
                pod("first", templates=["t3"], gated=True, cpu="1m"),
                pod("second", templates=["t1"], gated=True, cpu="1m"),
            ]
            await harness.add(kinds.POD, *(in_labelled_group(each, "pair", 2) for each in both))
        else:
            await add(harness, "first", cards=3)
            await add(harness, "second")
        await harness.sleep(1)
        await add(harness, "large", cards=4)
        await harness.sleep(5)
        (said,) = await harness.events("PlaceReserved")
        assert "once 2 pods (first, second) there have ended" in said["note"]
        await add(harness, "third")
        for name in ("first", "second"):
            await harness.delete_pod(name)
        await harness.sleep(5)
        assert await devices_of(harness, "large") == {f"gpu-{number}" for number in range(4)}

    play(story, scheduler=False, save_after=3)


def test_a_place_that_could_not_be_found_is_looked_for_again_soon():
    """A device is held by a claim of which nobody knows how long it takes."""

    async def story(harness):
        await add(harness, "runs", cards=3)
        await harness.bound("runs")
        await harness.add(kinds.RESOURCE_CLAIM, claim("others", CARD))
        free = {f"gpu-{number}" for number in range(4)} - await devices_of(harness, "runs")
        await harness.allocate_as_somebody_else("others", "n0", device=free.pop(), memory=CARD)
        await add(harness, "large", cards=4)
        await harness.sleep(WAIT + 5)
        assert await harness.events("PlaceReserved") == []
        await harness.add(kinds.POD, pod("uses", claims=["others"], nodeName="n0", cpu="1m"))
        await harness.sleep(5)
        assert len(await harness.events("PlaceReserved")) == 1

    play(story)


async def devices_of(harness, name):
    allocations = [each.status.allocation for each in await harness.claims_of(name)]
    return {result.device for each in allocations for result in each.devices.results}


def test_of_two_large_jobs_one_has_a_place():
    async def story(harness):
        for node in ("a", "b"):
            await add(harness, f"on-{node}", cards=3)
        await harness.bound("on-a", "on-b")
        for name in ("first", "second"):
            await add(harness, name, cards=4)
        await harness.sleep(WAIT + 30)
        assert harness.metric("hami_dra_preemptions_total", result="reserved") == 1
        await add(harness, "small")
        await harness.bound("small", seconds=10)

    play(story, nodes=2)


def test_a_job_that_fits_on_no_node_reserves_none():
    async def story(harness):
        await add(harness, "runs", cards=3)
        await harness.bound("runs")
        await add(harness, "large", cards=5)
        await harness.sleep(WAIT + 60)
        assert await harness.events("PlaceReserved") == []

    play(story)


@pytest.mark.parametrize("large", [large_pod, large_gang])
def test_the_lease_says_what_is_held_with_the_renewals_that_happen_anyway(large):
    """Two controllers: what the first held is gone from the Lease with its term."""
    elected = {"quiet_time": 0.0, "probe": False, "leader_election": True, "lease": Timings(), "save_after": WAIT}

    async def lease(harness):
        (found,) = (await harness.cluster.list(kinds.LEASE)).items
        return found.metadata.annotations, int(found.metadata.resource_version)

    async def renewals(harness):
        """How often the Lease is written in a minute."""
        seen = set()
        for _ in range(600):
            await harness.sleep(0.1)
            seen.add((await lease(harness))[1])
        return len(seen)

    async def story(harness):
        first = harness.start(decide=decide, **elected)
        small = [f"small-{number}" for number in range(4)]
        for name in small:
            await add(harness, name)
        await harness.bound(*small, seconds=30)
        assert names.HELD_PLACES not in (await lease(harness))[0]
        idle = await renewals(harness)
        jobs = await large(harness)
        await harness.sleep(WAIT + 10)
        places = decoded((await lease(harness))[0][names.HELD_PLACES])
        assert [(each.kind, each.pod, each.node) for each in places] == [
            ("reserved", f"default/{name}", "n0") for name in jobs
        ]
        assert len({device for each in places for device in each.devices}) == 4
        assert all(each.since < each.until for each in places)
        assert abs(await renewals(harness) - idle) <= 2
        harness.start(decide=decide, **elected)
        await harness.stop(first)
        assert names.HELD_PLACES not in (await lease(harness))[0]
        await harness.sleep(2 * WAIT)
        assert len(decoded((await lease(harness))[0][names.HELD_PLACES])) == len(jobs)
        for name in small:
            await harness.finish_pod(name)
        await harness.bound(*jobs, seconds=60)
        await harness.sleep(5)
        assert names.HELD_PLACES not in (await lease(harness))[0]

    play(story, controller=False)


def test_pods_that_terminate_for_long_are_waited_for_at_the_place_that_is_reserved():
    """Without preemption; a place that is taken for free once they are gone is not given up at once, again and again."""

    async def story(harness):
        for number in range(4):
            await add(harness, f"small-{number}")
        await harness.sleep(5)
        await add(harness, "large", cards=4)
        slow = {"metadata": {"finalizers": ["example.com/slow"]}}
        await harness.cluster.patch(kinds.POD, "small-0", slow, namespace="default")
        await harness.sleep(WAIT - 5)
        await harness.delete_pod("small-0")
        await harness.sleep(20)
        for number in range(1, 4):
            await harness.delete_pod(f"small-{number}")
            await harness.sleep(20)
        assert harness.metric("hami_dra_preemptions_total", result="reserved") == 1
        assert harness.metric("hami_dra_preemptions_total", result="given_up") == 0
        await harness.cluster.patch(kinds.POD, "small-0", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.bound("large", seconds=10)

    play(story, graceful=True)
