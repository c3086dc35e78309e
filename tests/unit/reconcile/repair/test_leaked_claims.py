"""What a crash left behind is freed after a minute, and nothing else is."""

import pytest

from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Unavailable
from tests.support.harness import SPACE, claim, play, pod

QUICK = {"quiet_time": 0.0, "probe": False}


async def left_over(harness, *, allocator="hami-dra", name="c"):
    body = claim(name)
    body["metadata"] |= {"finalizers": [names.DELETE_PROTECTION]}
    await harness.add(kinds.RESOURCE_CLAIM, body)
    await harness.allocate_as_somebody_else(name, "n0", allocator=allocator)


async def is_clean(harness):
    return (await harness.claim("c")).status.allocation is None


def test_a_claim_of_ours_that_nobody_refers_to_is_freed_after_a_minute():
    async def story(harness):
        await left_over(harness)
        await harness.sleep(59)
        assert not await is_clean(harness)
        await harness.until(lambda: is_clean(harness), seconds=30)
        assert harness.metric("hami_dra_orphans_freed_total") == 1
        assert len(await harness.events("OrphanedAllocationFreed")) == 1

    play(story, **QUICK)


def test_a_claim_that_was_never_allocated_is_left_to_the_claim_controller():
    """It takes the finalizer off when the claim is deleted."""

    async def story(harness):
        body = claim("c")
        body["metadata"] |= {"finalizers": [names.DELETE_PROTECTION]}
        await harness.add(kinds.RESOURCE_CLAIM, body)
        before = (await harness.claim("c")).metadata.resource_version
        await harness.sleep(300)
        assert (await harness.claim("c")).metadata.resource_version == before
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, "c", namespace=SPACE)
        await harness.sleep(1)
        assert await harness.claims() == []

    play(story, **QUICK)


@pytest.mark.parametrize("allocator", ["", "another-installation"])
def test_claims_of_others_are_never_touched(allocator):
    async def story(harness):
        await left_over(harness, allocator=allocator)
        before = (await harness.claim("c")).metadata.resource_version
        await harness.sleep(300)
        assert (await harness.claim("c")).metadata.resource_version == before

    play(story, **QUICK)


def test_a_claim_that_a_pod_refers_to_is_not_freed():
    async def story(harness):
        await left_over(harness)
        await harness.add(kinds.POD, pod("p", claims=["c"], schedulerName="volcano"))
        await harness.sleep(300)
        assert (await harness.claim("c")).status.allocation is not None

    play(story, **QUICK)


def test_a_pod_that_our_view_misses_is_asked_for_live():
    async def story(harness):
        await left_over(harness)
        await harness.sleep(5)
        harness.cluster.pause_watches()
        await harness.add(kinds.POD, pod("p", claims=["c"], schedulerName="volcano"))
        await harness.sleep(200)
        assert (await harness.claim("c")).status.allocation is not None

    play(story, **QUICK)


def test_a_reserved_claim_is_not_freed_and_the_time_starts_again():
    async def story(harness):
        await left_over(harness)
        await harness.sleep(50)
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p")
        await harness.delete_pod("p")
        await harness.sleep(1)
        assert await is_clean(harness), "the claim controller has cleared it"
        assert harness.metric("hami_dra_orphans_freed_total") == 0

    play(story, **QUICK)


def test_what_fails_is_tried_again():
    async def story(harness):
        await left_over(harness)
        harness.cluster.fail_next(Unavailable("away"), verb="get", kind=kinds.RESOURCE_CLAIM, times=3)
        harness.cluster.fail_next(Unavailable("away"), verb="list", kind=kinds.POD, times=1)
        harness.cluster.fail_next(Unavailable("away"), verb="patch", kind=kinds.RESOURCE_CLAIM, applied=True)
        await harness.sleep(200)
        assert await is_clean(harness)

    async def started(harness):
        harness.start(**QUICK)
        await harness.sleep(1)
        await story(harness)

    play(started, controller=False)


def test_a_pod_that_is_being_deleted_uses_its_claim_until_it_has_ended():
    """Somebody took the reservation away by hand, and the pod takes its time."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p")
        await harness.cluster.patch(kinds.POD, "p", {"metadata": {"finalizers": ["example.com/slow"]}}, namespace=SPACE)
        await harness.delete_pod("p")
        drop = {"status": {"reservedFor": None}}
        await harness.cluster.patch(kinds.RESOURCE_CLAIM, "c", drop, namespace=SPACE, subresource="status")
        await harness.sleep(300)
        assert (await harness.claim("c")).status.allocation is not None
        await harness.finish_pod("p")
        await harness.until(lambda: is_clean(harness), seconds=200)

    play(story, **QUICK)


def test_a_claim_that_cannot_be_written_does_not_hold_up_the_sweep():
    """A webhook that does not answer fails every write to the first one, as an internal error; the second one is freed."""

    async def story(harness):
        broken = True

        async def hook(request):
            if broken and request.is_write and request.name == "a-stubborn":
                raise Unavailable("failed calling webhook")

        for name in ("a-stubborn", "b-willing"):
            await left_over(harness, name=name)
        harness.cluster.hooks.append(hook)
        await harness.until(freed(harness, "b-willing"), seconds=200)
        assert (await harness.claim("a-stubborn")).status.allocation is not None
        broken = False
        await harness.until(freed(harness, "a-stubborn"), seconds=600)

    play(story, **QUICK)


def freed(harness, name):
    async def unallocated():
        return (await harness.claim(name)).status.allocation is None

    return unallocated


def test_it_can_be_allocated_again_at_once_and_deleted_in_the_middle():
    async def story(harness):
        await left_over(harness)
        await harness.sleep(65)
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, "c", namespace=SPACE)
        await harness.sleep(65)
        assert await harness.claims() == []

    play(story, **QUICK)
