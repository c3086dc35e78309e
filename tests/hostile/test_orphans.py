"""M3: forged `hami.io/allocated-by` annotations neither delay the release of devices nor cost more than a few requests."""

import asyncio
import uuid
from collections import Counter

import pytest

from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Conflict, Unavailable
from tests.support.harness import SPACE, claim, play, pod

QUICK = {"quiet_time": 0.0, "probe": False, "scheduler": False}
EVIL = "evil"
CLAIM = kinds.RESOURCE_CLAIM


def left_over(name, namespace):
    body = claim(name)
    body["metadata"] |= {
        "namespace": namespace,
        "annotations": {names.ALLOCATED_BY: "hami-dra"},
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
        CLAIM, name, {"status": {"allocation": allocation}}, namespace=namespace, subresource="status"
    )


async def is_freed(harness, name, namespace=SPACE):
    return (await harness.cluster.get(CLAIM, name, namespace)).status.allocation is None


def requests_by_namespace(harness):
    """Requests for claims and pods from now on, by (label, namespace); watches and lists of all namespaces apart."""
    seen = Counter()

    async def count(request):
        if request.kind in (CLAIM, kinds.POD) and request.namespace and request.verb != "watch":
            seen[request.label, request.namespace] += 1

    harness.cluster.hooks.append(count)
    return seen


def test_devices_are_freed_first_however_many_annotations_are_forged():
    async def story(harness):
        await harness.add(CLAIM, *(left_over(f"forged-{number}", EVIL) for number in range(1_500)))
        await harness.add(
            kinds.POD,
            *({**pod(f"p{number}"), "metadata": {"name": f"p{number}", "namespace": EVIL}} for number in range(50)),
        )
        for number in range(5):
            await orphan(harness, f"real-{number}")
        harness.start(quiet_time=0.0, probe=False)
        await harness.sleep(5)
        seen = requests_by_namespace(harness)
        await harness.sleep(80)
        sent = dict(seen)
        assert all([await is_freed(harness, f"real-{number}") for number in range(5)])
        # three sweeps at most: nothing is read for a forged claim, and nothing of the tenant's is listed
        assert set(sent) == {
            ("list pods", SPACE),
            ("patch resourceclaims/status", SPACE),
            ("patch resourceclaims", SPACE),
            ("patch resourceclaims", EVIL),
        }
        assert sent["list pods", SPACE] == 1
        assert sent["patch resourceclaims", EVIL] <= 300
        await harness.sleep(300)
        found = (await harness.cluster.list(CLAIM, namespace=EVIL)).items
        assert not any(names.ALLOCATED_BY in each.metadata.annotations for each in found)

    play(story, controller=False, scheduler=False)


def test_forging_again_is_answered_later_each_time():
    async def story(harness):
        await harness.add(CLAIM, left_over("forged", EVIL))
        seen = requests_by_namespace(harness)
        forged = 0
        for _ in range(4 * 360):
            await harness.sleep(10)
            found = await harness.cluster.get(CLAIM, "forged", EVIL)
            if names.ALLOCATED_BY not in found.metadata.annotations:
                forged += 1
                again = {"metadata": {"annotations": {names.ALLOCATED_BY: "hami-dra"}}}
                await harness.cluster.patch(CLAIM, "forged", again, namespace=EVIL)
        ours = seen["patch resourceclaims", EVIL] - forged
        # after 1, 2, 4, ... 60 minutes: ten in four hours, and not 240
        assert 8 <= ours <= 12

    play(story, **QUICK)


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
