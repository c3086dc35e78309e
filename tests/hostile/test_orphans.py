"""M3: forged `hami.io/allocated-by` annotations neither delay the release of devices nor cost more than a few requests."""

import asyncio
import uuid
from collections import Counter

import pytest

from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Conflict, Unavailable
from tests.support.scene import SPACE, claim, play, pod

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


async def orphan(scene, name, namespace=SPACE, device="gpu-0"):
    """A claim with an allocation of ours that a crash left behind."""
    await scene.add(CLAIM, left_over(name, namespace))
    result = {
        "request": "card",
        "driver": "gpu.example.com",
        "pool": "n0",
        "device": device,
        "shareID": str(uuid.uuid4()),
    }
    allocation = {"devices": {"results": [{**result, "consumedCapacity": {"memory": "1Gi"}}]}}
    await scene.cluster.patch(
        CLAIM, name, {"status": {"allocation": allocation}}, namespace=namespace, subresource="status"
    )


async def is_freed(scene, name, namespace=SPACE):
    return (await scene.cluster.get(CLAIM, name, namespace)).status.allocation is None


def requests_by_namespace(scene):
    """Requests for claims and pods from now on, by (label, namespace); watches and lists of all namespaces apart."""
    seen = Counter()

    async def count(request):
        if request.kind in (CLAIM, kinds.POD) and request.namespace and request.verb != "watch":
            seen[request.label, request.namespace] += 1

    scene.cluster.hooks.append(count)
    return seen


def test_devices_are_freed_first_however_many_annotations_are_forged():
    async def story(scene):
        await scene.add(CLAIM, *(left_over(f"forged-{number}", EVIL) for number in range(1_500)))
        await scene.add(
            kinds.POD,
            *({**pod(f"p{number}"), "metadata": {"name": f"p{number}", "namespace": EVIL}} for number in range(50)),
        )
        for number in range(5):
            await orphan(scene, f"real-{number}")
        scene.start(quiet_time=0.0, probe=False)
        await scene.sleep(5)
        seen = requests_by_namespace(scene)
        await scene.sleep(80)
        sent = dict(seen)
        assert all([await is_freed(scene, f"real-{number}") for number in range(5)])
        # three sweeps at most: nothing is read for a forged claim, and nothing of the tenant's is listed
        assert set(sent) == {
            ("list pods", SPACE),
            ("patch resourceclaims/status", SPACE),
            ("patch resourceclaims", SPACE),
            ("patch resourceclaims", EVIL),
        }
        assert sent["list pods", SPACE] == 1
        assert sent["patch resourceclaims", EVIL] <= 300
        await scene.sleep(300)
        found = (await scene.cluster.list(CLAIM, namespace=EVIL)).items
        assert not any(names.ALLOCATED_BY in each.metadata.annotations for each in found)

    play(story, controller=False, scheduler=False)


def test_forging_again_is_answered_later_each_time():
    async def story(scene):
        await scene.add(CLAIM, left_over("forged", EVIL))
        seen = requests_by_namespace(scene)
        forged = 0
        for _ in range(4 * 360):
            await scene.sleep(10)
            found = await scene.cluster.get(CLAIM, "forged", EVIL)
            if names.ALLOCATED_BY not in found.metadata.annotations:
                forged += 1
                again = {"metadata": {"annotations": {names.ALLOCATED_BY: "hami-dra"}}}
                await scene.cluster.patch(CLAIM, "forged", again, namespace=EVIL)
        ours = seen["patch resourceclaims", EVIL] - forged
        # after 1, 2, 4, ... 60 minutes: ten in four hours, and not 240
        assert 8 <= ours <= 12

    play(story, **QUICK)


@pytest.mark.parametrize("verb", ["list", "patch"])
def test_what_cannot_be_freed_holds_up_nobody_else(verb):
    """A namespace whose pods cannot be listed, and claims that somebody changes before each write."""

    async def story(scene):
        for number in range(10):
            await orphan(scene, f"stuck-{number}", EVIL)
        await orphan(scene, "real")
        if verb == "list":
            await scene.add(kinds.NAMESPACE, {"metadata": {"name": EVIL}})
            scene.cluster.hooks.append(failing_for(EVIL))
        else:
            error = Conflict("changed in between")
            for number in range(10):
                scene.cluster.fail_next(error, verb="patch", kind=CLAIM, name=f"stuck-{number}", times=10**9)
        scene.start(quiet_time=0.0, probe=False)
        await scene.until(lambda: is_freed(scene, "real"), seconds=90)
        assert not await is_freed(scene, "stuck-0", EVIL)

    play(story, controller=False, scheduler=False, limit=4_000)


def failing_for(namespace):
    async def fail(request):
        if request.verb == "list" and request.kind is kinds.POD and request.namespace == namespace:
            raise Unavailable("away")

    return fail


def test_an_error_that_nobody_planned_for_ends_no_loop():
    async def story(scene):
        await orphan(scene, "stuck", EVIL)
        await orphan(scene, "real")

        async def fail(request):
            if request.namespace == EVIL and request.kind is kinds.POD:
                raise RuntimeError("nobody planned for this")

        scene.cluster.hooks.append(fail)
        scene.start(quiet_time=0.0, probe=False)
        await scene.until(lambda: is_freed(scene, "real"), seconds=90)
        scene.cluster.hooks.remove(fail)
        await scene.until(lambda: is_freed(scene, "stuck", EVIL), seconds=90)

    play(story, controller=False, scheduler=False)


def test_claims_whose_writes_hang_hold_up_no_later_sweep():
    """An admission webhook of one namespace that takes its time: what another tenant's crash leaves meanwhile is freed."""

    async def story(scene):
        for number in range(30):
            await orphan(scene, f"stuck-{number}", EVIL)

        async def hang(request):
            if request.is_write and request.kind is CLAIM and request.namespace == EVIL:
                await asyncio.sleep(4)
                raise Unavailable("a webhook does not answer")

        scene.cluster.hooks.append(hang)
        scene.start(quiet_time=0.0, probe=False)
        await scene.sleep(85)  # the first of them are under way
        await orphan(scene, "real")
        await scene.until(lambda: is_freed(scene, "real"), seconds=90)
        assert not await is_freed(scene, "stuck-0", EVIL)

    play(story, controller=False, scheduler=False)
