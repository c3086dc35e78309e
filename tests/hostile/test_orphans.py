"""Claims of one tenant that cannot be freed hold up the release of no other tenant's devices."""

import asyncio
import uuid

import pytest

from hami_dra.api import kinds, names
from hami_dra.api.allocator import with_allocator
from hami_dra.kube.protocol import Conflict, Unavailable
from tests.support.harness import SPACE, claim, play

QUICK = {"quiet_time": 0.0, "probe": False, "scheduler": False}
EVIL = "evil"
CLAIM = kinds.RESOURCE_CLAIM


def left_over(name, namespace):
    body = claim(name)
    body["metadata"] |= {
        "namespace": namespace,
        "finalizers": [names.DELETE_PROTECTION],
    }
    return body


async def orphan(harness, name, namespace=SPACE, device="gpu-0"):
    """A claim with an allocation of ours that a crash left behind."""
    await harness.add(CLAIM, left_over(name, namespace))
    result = {
        "request": "card",
        "driver": "gpu.example.com",
        "pool": "n0",
        "device": device,
        "shareID": str(uuid.uuid4()),
    }
    allocation = {"devices": {"results": [{**result, "consumedCapacity": {"memory": "1Gi"}}]}}
    await harness.cluster.patch(
        CLAIM,
        name,
        {"status": {"allocation": with_allocator(allocation, "hami-dra")}},
        namespace=namespace,
        subresource="status",
    )


async def is_freed(harness, name, namespace=SPACE):
    return (await harness.cluster.get(CLAIM, name, namespace)).status.allocation is None


@pytest.mark.parametrize("verb", ["list", "patch"])
def test_what_cannot_be_freed_holds_up_nobody_else(verb):
    """A namespace whose pods cannot be listed, and claims that somebody changes before each write."""

    async def story(harness):
        for number in range(10):
            await orphan(harness, f"stuck-{number}", EVIL)
        await orphan(harness, "real")
        if verb == "list":
            await harness.add(kinds.NAMESPACE, {"metadata": {"name": EVIL}})
            harness.cluster.hooks.append(failing_for(EVIL))
        else:
            error = Conflict("changed in between")
            for number in range(10):
                harness.cluster.fail_next(error, verb="patch", kind=CLAIM, name=f"stuck-{number}", times=10**9)
        harness.start(quiet_time=0.0, probe=False)
        await harness.until(lambda: is_freed(harness, "real"), seconds=90)
        assert not await is_freed(harness, "stuck-0", EVIL)

    play(story, controller=False, scheduler=False, limit=4_000)


def failing_for(namespace):
    async def fail(request):
        if request.verb == "list" and request.kind is kinds.POD and request.namespace == namespace:
            raise Unavailable("away")

    return fail


def test_an_error_that_nobody_planned_for_ends_no_loop():
    async def story(harness):
        await orphan(harness, "stuck", EVIL)
        await orphan(harness, "real")

        async def fail(request):
            if request.namespace == EVIL and request.kind is kinds.POD:
                raise RuntimeError("nobody planned for this")

        harness.cluster.hooks.append(fail)
        harness.start(quiet_time=0.0, probe=False)
        await harness.until(lambda: is_freed(harness, "real"), seconds=90)
        harness.cluster.hooks.remove(fail)
        await harness.until(lambda: is_freed(harness, "stuck", EVIL), seconds=90)

    play(story, controller=False, scheduler=False)


def test_claims_whose_writes_hang_hold_up_no_later_sweep():
    """An admission webhook of one namespace that takes its time: what another tenant's crash leaves meanwhile is freed."""

    async def story(harness):
        for number in range(30):
            await orphan(harness, f"stuck-{number}", EVIL)

        async def hang(request):
            if request.is_write and request.kind is CLAIM and request.namespace == EVIL:
                await asyncio.sleep(4)
                raise Unavailable("a webhook does not answer")

        harness.cluster.hooks.append(hang)
        harness.start(quiet_time=0.0, probe=False)
        await harness.sleep(85)  # the first of them are under way
        await orphan(harness, "real")
        await harness.until(lambda: is_freed(harness, "real"), seconds=90)
        assert not await is_freed(harness, "stuck-0", EVIL)

    play(story, controller=False, scheduler=False)
