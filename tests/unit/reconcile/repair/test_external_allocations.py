"""Somebody else allocates a managed device: told, counted, and our unbound claim gives way."""

import asyncio

import msgspec
import pytest

from controller.reconcile.repair.external_allocations import ClaimAllocationUse, overlaps
from hami_dra.api import kinds
from hami_dra.api.resource import DeviceRequestAllocationResult, ResourceClaim
from hami_dra.kube.protocol import Unavailable
from tests.support.harness import DRIVER, SPACE, claim, play, pod

QUICK = {"quiet_time": 0.0, "probe": False}


def use(*results):
    common = {"request": "r", "driver": "d", "pool": "p", "device": "x"}
    return ClaimAllocationUse(
        ResourceClaim(), tuple(msgspec.convert(common | result, DeviceRequestAllocationResult) for result in results)
    )


def share(memory):
    return {"shareID": "s", "consumedCapacity": {"memory": memory}}


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([], False),
        ([use({})], False),
        ([use({}), use({})], True),
        ([use({}), use(share("1Gi"))], True),
        ([use(share("8Gi")), use(share("8Gi"))], False),
        ([use(share("8Gi")), use(share("8193Mi"))], True),
        ([use(share("8Gi"), share("9Gi"))], True),
        ([use({}), use({"adminAccess": True})], False),
        ([use({"shareID": "s", "consumedCapacity": {"unknown": "1"}})], True),
    ],
)
def test_when_a_device_is_given_away_twice(uses, expected):
    assert overlaps(uses, {"memory": 16 * 2**30}) is expected


def test_capacities_of_a_device_that_is_not_published_are_not_judged():
    assert not overlaps([use(share("99Gi"))], None)


def held(harness, name):
    async def allocated():
        return (await harness.claim(name)).status.allocation is not None

    return allocated


def given_back(harness, name):
    async def unallocated():
        return (await harness.claim(name)).status.allocation is None

    return unallocated


def test_an_overlap_is_told_and_our_unbound_claim_moves():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours", 12), claim("theirs", 12))
        await harness.add(kinds.POD, pod("p", claims=["ours"]))
        await harness.until(held(harness, "ours"))
        await harness.add(kinds.POD, pod("thief", claims=["theirs"], schedulerName="other"))
        await harness.allocate_as_somebody_else("theirs", "n0", memory=12, pod="thief")

        async def moved():
            allocation = (await harness.claim("ours")).status.allocation
            return allocation is not None and allocation.devices.results[0].device == "gpu-1"

        await harness.until(moved, seconds=10)
        await harness.check_never_overcommitted()
        assert harness.metric("hami_dra_foreign_allocations_total", driver=DRIVER) == 1
        assert harness.metric("hami_dra_overlaps_total", driver=DRIVER) == 1
        assert harness.metric("hami_dra_undos_total", cause="overlap") == 1
        assert len(await harness.events("ForeignAllocation")) == 1
        assert len(await harness.events("AllocationUndone")) == 1

    play(story, nodes=1, scheduler=False, **QUICK)


def test_a_finished_pod_of_our_claim_does_not_keep_it_on_a_device_that_is_given_twice():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours", 12), claim("theirs", 12))
        await harness.add(kinds.POD, pod("run1", claims=["ours"]))
        await harness.until(held(harness, "ours"))
        await harness.cluster.bind("run1", SPACE, "n0")
        await harness.finish_pod("run1")
        await harness.until(given_back(harness, "ours"))
        await harness.add(kinds.POD, pod("run2", claims=["ours"]))
        await harness.until(held(harness, "ours"))
        await harness.allocate_as_somebody_else("theirs", "n0", memory=12)

        async def moved():
            allocation = (await harness.claim("ours")).status.allocation
            return allocation is not None and allocation.devices.results[0].device == "gpu-1"

        await harness.until(moved, seconds=10)
        await harness.check_never_overcommitted()

    play(story, nodes=1, scheduler=False, **QUICK)


def test_what_is_bound_stays_and_is_told_about():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours", 12), claim("theirs", 12))
        await harness.add(kinds.POD, pod("p", claims=["ours"]))
        await harness.bound("p")
        await harness.allocate_as_somebody_else("theirs", "n0", memory=12)
        await harness.sleep(10)
        assert (await harness.claim("ours")).status.allocation is not None
        notes = [event["note"] for event in await harness.events("ForeignAllocation")]
        assert any("several claims at once" in note for note in notes)

    play(story, nodes=1, node_options={"cards": 1}, **QUICK)


def test_a_foreign_allocation_beside_ours_is_only_told():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours", 4), claim("theirs", 4))
        await harness.add(kinds.POD, pod("p", claims=["ours"]))
        await harness.until(held(harness, "ours"))
        await harness.allocate_as_somebody_else("theirs", "n0", memory=4)
        await harness.sleep(5)
        assert (await harness.claim("ours")).status.allocation is not None
        assert harness.metric("hami_dra_overlaps_total", driver=DRIVER) == 0
        assert len(await harness.events("ForeignAllocation")) == 1

    play(story, nodes=1, scheduler=False, **QUICK)


def test_what_was_there_before_us_is_no_news_but_overlaps_are_looked_for():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("before", 4))
        await harness.allocate_as_somebody_else("before", "n0", memory=4)
        harness.start(**QUICK)
        await harness.sleep(5)
        assert await harness.events("ForeignAllocation") == []
        # and it counts
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours", 13))
        await harness.add(kinds.POD, pod("p", claims=["ours"]))
        await harness.bound("p")
        await harness.check_never_overcommitted()

    play(story, nodes=1, controller=False)


def test_one_that_lands_while_ours_is_under_way_is_found_too():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours", 12), claim("theirs", 12))
        await harness.add(kinds.POD, pod("thief", claims=["theirs"], schedulerName="other"))

        async def faster(request):
            if request.label == "patch resourceclaims/status" and request.name == "ours":
                harness.cluster.hooks.remove(faster)
                await harness.allocate_as_somebody_else("theirs", "n0", memory=12, pod="thief")
                await harness.sleep(0.1)

        harness.cluster.hooks.append(faster)
        await harness.add(kinds.POD, pod("p", claims=["ours"]))

        async def moved():
            allocation = (await harness.claim("ours")).status.allocation
            return allocation is not None and allocation.devices.results[0].device == "gpu-1"

        await harness.until(moved, seconds=10)
        await harness.check_never_overcommitted()

    play(story, nodes=1, scheduler=False, **QUICK)


def test_a_claim_that_cannot_be_written_holds_up_no_other():
    """A webhook of one namespace that does not answer: every write to that claim fails with an internal error."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("stubborn", 12), claim("willing", 12))
        await harness.add(kinds.RESOURCE_CLAIM, claim("theirs-0", 12), claim("theirs-1", 12))
        await harness.add(kinds.POD, pod("p0", claims=["stubborn"]))
        await harness.until(held(harness, "stubborn"))
        await harness.add(kinds.POD, pod("p1", claims=["willing"]))
        await harness.until(held(harness, "willing"))
        broken = True

        async def hook(request):
            if broken and request.is_write and request.name == "stubborn":
                raise Unavailable("failed calling webhook")

        harness.cluster.hooks.append(hook)
        for device, name in enumerate(("theirs-0", "theirs-1")):
            await harness.allocate_as_somebody_else(name, "n0", device=f"gpu-{device}", memory=12)
        await harness.until(given_back(harness, "willing"), seconds=60)
        assert (await harness.claim("stubborn")).status.allocation is not None
        broken = False
        await harness.until(given_back(harness, "stubborn"), seconds=600)
        await harness.check_never_overcommitted()
        assert harness.metric("hami_dra_overlaps_total", driver=DRIVER) == 2

    play(story, nodes=1, scheduler=False, **QUICK)


def test_a_claim_whose_writes_hang_holds_up_no_other_device():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("stubborn", 12), claim("willing", 12))
        await harness.add(kinds.RESOURCE_CLAIM, claim("theirs-0", 12), claim("theirs-1", 12))
        await harness.add(kinds.POD, pod("p0", claims=["stubborn"]))
        await harness.until(held(harness, "stubborn"))
        await harness.add(kinds.POD, pod("p1", claims=["willing"]))
        await harness.until(held(harness, "willing"))

        async def hook(request):
            if request.is_write and request.name == "stubborn" and request.subresource == "status":
                await asyncio.sleep(4)
                raise Unavailable("a webhook does not answer")

        harness.cluster.hooks.append(hook)
        await harness.allocate_as_somebody_else("theirs-0", "n0", device="gpu-0", memory=12)
        await harness.sleep(1)
        await harness.allocate_as_somebody_else("theirs-1", "n0", device="gpu-1", memory=12)
        await harness.until(given_back(harness, "willing"), seconds=2)

    play(story, nodes=1, scheduler=False, **QUICK)
