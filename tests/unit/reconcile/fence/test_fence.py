"""kube-scheduler is kept off the managed devices, and nothing is committed before that is certain."""

import asyncio
from contextlib import suppress

import pytest

from controller.reconcile.fence.rules import (
    driver_of,
    is_fenced_slice,
    is_intact,
    is_kept,
    is_proven,
    proof,
    rule_body,
    rule_names,
    rules_of,
)
from hami_dra.api import kinds, names
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.resource import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from hami_dra.kube.memory import default_kinds
from hami_dra.kube.protocol import ConfigError, NotFound, ServerVersion, Unavailable
from tests.support.census import census
from tests.support.mortal import Mortal
from tests.support.scene import DRIVER, SPACE, claim, device_class, gpu_slice, play, pod, template

RULE = kinds.DEVICE_TAINT_RULE
FIRST, SECOND = rule_names(DRIVER)
V1_36 = ServerVersion(1, 36, "v1.36.4")


def rule(selector=None, effect="NoSchedule", key=names.FENCE_TAINT, **meta):
    return DeviceTaintRule(
        metadata=ObjectMeta(name="r", uid="u", generation=2, **meta),
        spec=DeviceTaintRuleSpec(
            taint=DeviceTaint(key=key, effect=effect), device_selector=selector or DeviceTaintSelector(driver=DRIVER)
        ),
    )


def test_what_an_intact_rule_is():
    assert is_intact(rule(), DRIVER)
    assert not is_intact(rule(), "other")
    assert not is_intact(rule(DeviceTaintSelector()), DRIVER)
    assert not is_intact(rule(DeviceTaintSelector(driver=DRIVER, pool="n0")), DRIVER)
    assert not is_intact(rule(DeviceTaintSelector(driver=DRIVER, device="gpu-0")), DRIVER)
    assert not is_intact(rule(effect="NoExecute"), DRIVER)
    assert not is_intact(rule(key="other"), DRIVER)
    assert not is_intact(rule(deletion_timestamp="2026-01-01T00:00:00Z"), DRIVER)


def test_whose_fence_a_rule_is():
    assert driver_of(FIRST, [DRIVER]) == driver_of(SECOND, ["x", DRIVER]) == DRIVER
    assert driver_of(FIRST, ["x"]) is None
    drivers = ["x", "2-x", "fence-x", "fence2-x", "x-2", "hami-dra-fence-x"]
    assert len({name for driver in drivers for name in rule_names(driver)}) == 2 * len(drivers)


def test_of_two_rules_the_better_one_comes_first():
    proven = rule(annotations={names.FENCE_PROVEN: proof(rule())})
    ours = {"deletion_timestamp": "2026-01-01T00:00:00Z", "finalizers": (names.FENCE_FINALIZER,)}
    ranked = [proven, rule(), rule(**ours), rule(effect="None")]
    for place, better in enumerate(ranked):
        for worse in ranked[place:]:
            for found in ({FIRST: better, SECOND: worse}, {FIRST: worse, SECOND: better}):
                assert rules_of(DRIVER, found.get)[0] == better
    assert rules_of(DRIVER, {}.get) == []


def test_a_proof_holds_for_one_version_of_one_rule():
    assert not is_proven(rule())
    assert is_proven(rule(annotations={names.FENCE_PROVEN: proof(rule())}))
    assert not is_proven(rule(annotations={names.FENCE_PROVEN: "u/1"}))
    assert not is_proven(rule(annotations={names.FENCE_PROVEN: "other/2"}))


async def first_commit(scene, name="p"):
    """When the claim `c` is allocated, in the scene's seconds."""
    await scene.add(kinds.RESOURCE_CLAIM, claim("c"))
    await scene.add(kinds.POD, pod(name, claims=["c"]))
    await scene.until(lambda: is_allocated(scene))
    return scene.clock.monotonic()


async def tear_out(scene, name=FIRST):
    """As somebody does who does not want to wait."""
    await scene.cluster.patch(RULE, name, {"metadata": {"finalizers": None}})
    await scene.cluster.delete(RULE, name)


async def rules(scene):
    return {item.metadata.name: item for item in (await scene.cluster.list(RULE)).items}


async def is_allocated(scene, name="c"):
    return (await scene.claim(name)).status.allocation is not None


async def probes(scene):
    return [item for kind in (kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS)
            for item in (await scene.cluster.list(kind, label_selector=names.PROBE_LABEL)).items]  # fmt: skip


def test_nothing_is_committed_before_rule_quiet_time_and_probe():
    async def story(scene):
        at = await first_commit(scene)
        assert 10 <= at < 11.5
        found = await scene.cluster.get(RULE, FIRST)
        assert is_intact(found, DRIVER)
        assert is_proven(found)
        assert await probes(scene) == []
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.check_never_overcommitted()

    play(story)


def test_a_proven_fence_need_not_be_proven_again_by_the_next_leader():
    async def story(scene):
        await scene.sleep(12)
        await scene.stop(scene.controllers[0])
        before = scene.clock.monotonic()
        scene.start()
        assert await first_commit(scene) - before < 1

    play(story)


@pytest.mark.parametrize("damage", ["torn out", "narrowed", "weakened"])
def test_a_damaged_fence_is_put_back_within_a_second_and_proven_again(damage):
    async def story(scene):
        await scene.sleep(12)
        name = FIRST
        if damage == "torn out":
            await tear_out(scene)
        elif damage == "narrowed":
            await scene.cluster.patch(RULE, name, {"spec": {"deviceSelector": {"pool": "n0"}}})
        else:
            await scene.cluster.patch(RULE, name, {"spec": {"taint": {"effect": "None"}}})
        fell = scene.clock.monotonic()

        async def restored():
            found = [item for item in (await scene.cluster.list(RULE)).items if item.metadata.name == name]
            return bool(found) and is_intact(found[0], DRIVER)

        await scene.until(restored, seconds=1)
        assert await first_commit(scene) - fell >= 10
        assert scene.metric("hami_dra_fence_restored_total", driver=DRIVER) == 1
        [event] = await scene.events("FenceRestored")
        assert DRIVER in event["note"]

    play(story)


def test_a_write_already_under_way_does_not_follow_a_fallen_fence():
    async def story(scene):
        await scene.sleep(12)

        async def fell(request):
            if request.label == "patch resourceclaims" and request.name == "c":
                scene.cluster.hooks.remove(fell)
                await tear_out(scene)
                await scene.sleep(0.1)

        scene.cluster.hooks.append(fell)
        start = scene.clock.monotonic()
        assert await first_commit(scene) - start >= 10
        assert scene.metric("hami_dra_commits_total", result="stale") == 1

    play(story)


def test_an_api_server_that_is_away_delays_the_fence_but_does_not_end_it():
    async def story(scene):
        scene.cluster.fail_next(Unavailable("away"), verb="create", kind=RULE, times=5)
        scene.start()
        assert await first_commit(scene) < 20

    play(story, controller=False)


def test_a_scheduler_that_ignores_the_fence_is_noticed_and_nothing_is_committed():
    async def story(scene):
        async def allocate_the_probe():
            for held in await scene.claims():
                if names.PROBE_LABEL in held.metadata.labels and held.status.allocation is None:
                    result = {"request": "device", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
                    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
                    await scene.cluster.patch(
                        kinds.RESOURCE_CLAIM, held.metadata.name, status,
                        namespace=held.metadata.namespace, subresource="status",
                    )  # fmt: skip
            return scene.clock.monotonic() > 60

        await scene.add(kinds.RESOURCE_CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"]))
        await scene.until(allocate_the_probe, step=0.01)
        assert not await is_allocated(scene)
        assert "although it is fenced" in (await scene.events("FenceNotInForce"))[0]["note"]
        # it is put right: from now on the probe is refused
        refuse_probes(scene, lambda: NO_DEVICES)
        await scene.until(lambda: is_allocated(scene), seconds=30)
        assert is_proven((await rules(scene))[FIRST])
        assert await probes(scene) == []

    play(story, scheduler=False)


def test_without_anybody_looking_at_the_probe_nothing_is_committed():
    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await scene.sleep(300)
        assert not await is_allocated(scene)
        assert (await scene.pod("p")).spec.scheduling_gates  # a wait that ends by itself
        assert "has not looked" in (await scene.events("FenceNotInForce"))[0]["note"]

    play(story, scheduler=False)


# --- what a probe proves -------------------------------------------------------------------------------------------------

NO_DEVICES = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, not eligible for preemption"


def refuse_probes(scene, message):
    """Stand in for kube-scheduler: refuse every probe pod with what `message()` says at that moment."""

    async def hook(request):
        if request.verb != "get" or request.kind is not kinds.POD or not request.name.startswith("hami-dra-probe"):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message()}
        await scene.cluster.patch(
            kinds.POD, request.name, {"status": {"conditions": [condition]}},
            namespace=request.namespace, subresource="status",
        )  # fmt: skip

    scene.cluster.hooks.append(hook)


async def is_noted(scene):
    return is_proven((await rules(scene))[FIRST])


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 2 Too many pods.",
        'running "DynamicResources" plugin: device class hami-dra-probe does not exist',
        "waiting for resource claim controller to create a resourceclaim for the pod",
    ],
)
def test_a_refusal_that_is_not_about_devices_proves_nothing_but_holds_nobody_up(message):
    async def story(scene):
        said = message
        refuse_probes(scene, lambda: said)
        assert await first_commit(scene) < 30
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.sleep(60)
        assert not await is_noted(scene)
        assert scene.metric("hami_dra_fence_untested", driver=DRIVER) == 1
        said = NO_DEVICES
        await scene.until(lambda: is_noted(scene), seconds=120)
        assert scene.metric("hami_dra_fence_untested", driver=DRIVER) == 0
        assert await probes(scene) == []

    play(story, scheduler=False)


def test_the_probe_goes_to_a_node_that_has_a_device_for_it_and_asks_for_what_is_free():
    """A tenant on every card is the normal state: of a card that is shared the probe asks for the least."""

    async def story(scene):
        for device in ("gpu-0", "gpu-1"):
            await scene.add(kinds.RESOURCE_CLAIM, claim(device, 12))
            await scene.allocate_as_somebody_else(device, "n1", device=device, memory=12)
            await scene.add(kinds.RESOURCE_CLAIM, claim(f"whole-{device}"))
            await take_whole(scene, f"whole-{device}", "n0", device)
        seen = []

        async def hook(request):
            if request.verb == "create" and names.PROBE_LABEL in request.body["metadata"].get("labels", {}):
                seen.append(request.body["spec"])

        scene.cluster.hooks.append(hook)
        scene.start()
        await scene.sleep(15)
        assert await is_noted(scene)
        _, its_claim, its_pod = seen
        [request] = its_claim["devices"]["requests"]
        assert request["exactly"]["capacity"] == {"requests": {"memory": "0"}}
        required = its_pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [term] = required["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == ["n1"]

    play(story, controller=False)


async def take_whole(scene, name, node, device):
    result = {"request": "card", "driver": DRIVER, "pool": node, "device": device}
    status = {"allocation": {"devices": {"results": [result]}}}
    await scene.cluster.patch(kinds.RESOURCE_CLAIM, name, {"status": status}, namespace=SPACE, subresource="status")


def test_where_no_device_is_free_the_fence_holds_untested_until_one_is():
    async def story(scene):
        for device in ("gpu-0", "gpu-1"):
            await scene.add(kinds.RESOURCE_CLAIM, claim(device))
            await take_whole(scene, device, "n0", device)
        first = scene.start()
        await scene.sleep(60)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(scene)
        # the next leader does not take it for proven either
        await scene.stop(first)
        scene.start()
        await scene.sleep(60)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(scene)
        before = await scene.cluster.list(kinds.POD)
        await scene.cluster.delete(kinds.RESOURCE_CLAIM, "gpu-1", namespace=SPACE)
        await scene.until(lambda: is_noted(scene), seconds=30)
        assert await probes(scene) == []
        assert before.items == ()

    play(story, nodes=1, controller=False)


def test_a_rule_that_is_deleted_where_no_device_is_free_goes_all_the_same():
    """Its successor is untested, but was there before: kube-scheduler cannot hear of the one that goes and not of that."""

    async def story(scene):
        await scene.sleep(12)
        assert await is_noted(scene)
        for device in ("gpu-0", "gpu-1"):
            await scene.add(kinds.RESOURCE_CLAIM, claim(device))
            await take_whole(scene, device, "n0", device)
        await scene.cluster.delete(RULE, FIRST)
        await scene.sleep(12)
        [(name, left)] = (await rules(scene)).items()
        assert (name, is_proven(left)) == (SECOND, False)
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.cluster.delete(kinds.RESOURCE_CLAIM, "gpu-0", namespace=SPACE)
        await scene.sleep(30)
        assert is_proven((await rules(scene))[SECOND])

    play(story, nodes=1)


def test_devices_that_come_later_are_tested_when_they_come():
    async def story(scene):
        await scene.sleep(60)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(scene)
        await scene.add_node("n0")
        await scene.until(lambda: is_noted(scene), seconds=30)

    play(story, nodes=0)


def test_a_device_that_is_taken_while_kube_scheduler_looks_proves_nothing():
    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM, claim("theirs", 4))
        taken = 0

        async def hook(request):
            nonlocal taken
            if request.label == "create pods" and names.PROBE_LABEL in request.body["metadata"]["labels"]:
                taken += 1
                if taken == 1:
                    await scene.allocate_as_somebody_else("theirs", "n0", device="gpu-0", memory=4)
                    await scene.sleep(0.1)

        scene.cluster.hooks.append(hook)
        refuse_probes(scene, lambda: NO_DEVICES)
        scene.start()
        await scene.sleep(15)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(scene)
        await scene.until(lambda: is_noted(scene), seconds=30)
        assert taken == 2

    play(story, nodes=1, controller=False, scheduler=False)


def test_what_an_earlier_probe_left_does_not_take_the_next_one_apart():
    """Its pod goes slowly; class and claim of the next one must be there when it does."""

    async def story(scene):
        seen = []

        async def hook(request):
            if request.verb == "get" and request.name.startswith("hami-dra-probe") and request.kind is kinds.POD:
                classes = await scene.cluster.list(kinds.DEVICE_CLASS, label_selector=names.PROBE_LABEL)
                seen.append(len(classes.items))

        body = pod("hami-dra-probe", schedulerName="nobody")
        body["metadata"] |= {
            "namespace": names.PROBE_NAMESPACE,
            "labels": {names.PROBE_LABEL: "true"},
            "finalizers": ["example.com/slow"],
        }
        await scene.cluster.create(kinds.POD, body, namespace=names.PROBE_NAMESPACE)
        scene.cluster.hooks.append(hook)
        scene.start()
        await scene.sleep(20)
        assert scene.metric("hami_dra_fence_ready") == 0
        patch = {"metadata": {"finalizers": None}}
        await scene.cluster.patch(kinds.POD, "hami-dra-probe", patch, namespace=names.PROBE_NAMESPACE)
        await scene.until(lambda: is_noted(scene), seconds=20)
        assert set(seen) == {1}

    play(story, controller=False)


def test_a_fence_that_held_untested_and_does_not_hold_is_noticed():
    async def story(scene):
        said = "0/1 nodes are available: 1 Too many pods."
        refuse_probes(scene, lambda: said)
        await scene.sleep(40)
        assert scene.metric("hami_dra_fence_ready") == 1

        async def hook(request):
            if request.label == "create pods" and names.PROBE_LABEL in request.body["metadata"]["labels"]:
                [held] = [each for each in await scene.claims() if names.PROBE_LABEL in each.metadata.labels]
                result = {"request": "device", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
                status = {"allocation": {"devices": {"results": [result]}}}
                await scene.cluster.patch(
                    kinds.RESOURCE_CLAIM, held.metadata.name, {"status": status},
                    namespace=held.metadata.namespace, subresource="status",
                )  # fmt: skip

        scene.cluster.hooks.append(hook)

        async def fallen():
            return scene.metric("hami_dra_fence_ready") == 0

        await scene.until(fallen, seconds=120)
        assert "although it is fenced" in (await scene.events("FenceNotInForce"))[0]["note"]

    play(story, nodes=1, scheduler=False)


# --- somebody deletes the rule -----------------------------------------------------------------------------------------------


def test_a_deleted_rule_stays_in_force_until_another_one_is_proven_and_nothing_waits_for_that():
    async def story(scene):
        await scene.sleep(12)
        fence_was_down = []
        scene.cluster.hooks.append(watch_for_a_gap(scene, fence_was_down))
        await scene.cluster.delete(RULE, FIRST)
        deleted = scene.clock.monotonic()
        assert await first_commit(scene) - deleted < 1
        found = await rules(scene)
        assert found[FIRST].metadata.deletion_timestamp is not None
        assert is_kept(found[SECOND], DRIVER)
        assert not is_proven(found[SECOND])
        await scene.sleep(5)
        assert FIRST in await rules(scene)
        await scene.sleep(7)
        [(name, left)] = (await rules(scene)).items()
        assert (name, is_proven(left)) == (SECOND, True)
        assert fence_was_down == []
        assert scene.metric("hami_dra_fence_ready") == 1
        assert scene.metric("hami_dra_fence_restored_total", driver=DRIVER) == 1
        [event] = await scene.events("FenceRestored")
        assert event["regarding"]["uid"] == found[FIRST].metadata.uid
        assert f"stays in force until {SECOND}" in event["note"]
        # and back
        await scene.cluster.delete(RULE, SECOND)
        await scene.sleep(12)
        assert list(await rules(scene)) == [FIRST]
        assert fence_was_down == []

    play(story)


def watch_for_a_gap(scene, found):
    """A hook: puts into `found` each request before which there was no rule in force."""
    looking = False

    async def look(request):
        nonlocal looking
        if looking:
            return
        looking = True
        try:
            if not await rules(scene):
                found.append(request)
        finally:
            looking = False

    return look


def test_whoever_deletes_the_successors_too_never_gets_a_moment_without_a_rule():
    async def story(scene):
        await scene.sleep(12)
        fence_was_down = []
        scene.cluster.hooks.append(watch_for_a_gap(scene, fence_was_down))
        first = (await rules(scene))[FIRST].metadata.uid
        for _ in range(20):
            for name in await rules(scene):
                await scene.cluster.delete(RULE, name)
            await scene.sleep(1.5)
        found = await rules(scene)
        assert found[FIRST].metadata.uid == first  # what holds stays until something else does
        assert is_kept(found[SECOND], DRIVER)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert await first_commit(scene)
        await scene.sleep(12)
        assert list(await rules(scene)) == [SECOND]
        assert fence_was_down == []

    play(story)


def test_a_rule_torn_out_while_its_successor_is_not_proven_ends_the_fence():
    async def story(scene):
        await scene.sleep(12)
        await scene.cluster.delete(RULE, FIRST)
        await scene.sleep(3)
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        fell = scene.clock.monotonic()
        await scene.sleep(0.1)
        assert scene.metric("hami_dra_fence_ready") == 0
        assert 10 <= await first_commit(scene) - fell < 12

    play(story)


def test_a_rule_deleted_while_no_controller_runs_waits_for_one():
    async def story(scene):
        await scene.sleep(12)
        await scene.stop(scene.controllers[0])
        await scene.cluster.delete(RULE, FIRST)
        await scene.sleep(1000)
        assert list(await rules(scene)) == [FIRST]
        before = scene.clock.monotonic()
        scene.start()
        assert await first_commit(scene) - before >= 10
        await scene.sleep(1)
        assert list(await rules(scene)) == [SECOND]

    play(story)


def test_both_rules_deleted_while_no_controller_runs():
    async def story(scene):
        await scene.cluster.create(RULE, rule_body(DRIVER, SECOND))
        for name in (FIRST, SECOND):
            await scene.cluster.delete(RULE, name)
        scene.start()
        assert await first_commit(scene) >= 10
        await scene.sleep(1)
        [(_, left)] = (await rules(scene)).items()
        assert is_kept(left, DRIVER)

    async def begin(scene):
        await scene.cluster.create(RULE, rule_body(DRIVER))
        await story(scene)

    play(begin, controller=False)


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after it"])
@pytest.mark.parametrize("write", [1, 2, 6, 11, 12], ids=["successor", "probe", "amid the probe", "proof", "release"])
def test_a_controller_that_dies_while_it_replaces_a_rule_leaves_no_gap_and_the_next_one_goes_on(write, before):
    async def story(scene):
        mortal = Mortal(scene.cluster, 0, before=before)
        first = scene.start(through=mortal)
        await scene.sleep(12)
        fence_was_down = []
        scene.cluster.hooks.append(watch_for_a_gap(scene, fence_was_down))
        mortal.at_write(mortal.writes + write, before=before)
        await scene.cluster.delete(RULE, FIRST)
        await scene.sleep(15)
        assert mortal.dead.is_set()
        await scene.stop(first)
        scene.start()
        await first_commit(scene)
        await scene.sleep(15)
        [(name, left)] = (await rules(scene)).items()
        assert (name, is_kept(left, DRIVER), is_proven(left)) == (SECOND, True, True)
        assert fence_was_down == []
        assert await probes(scene) == []

    play(story, controller=False)


def test_a_rule_of_a_version_that_knew_no_finalizer_gets_it_and_stays_proven():
    async def story(scene):
        await scene.sleep(12)
        await scene.stop(scene.controllers[0])
        await scene.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        before = scene.clock.monotonic()
        scene.start()
        assert await first_commit(scene) - before < 1
        assert is_kept((await rules(scene))[FIRST], DRIVER)
        # somebody takes it off: it comes back, and the fence was never down
        await scene.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        await scene.sleep(1)
        assert is_kept((await rules(scene))[FIRST], DRIVER)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert scene.metric("hami_dra_fence_restored_total", driver=DRIVER) == 0

    play(story)


def test_finalizers_of_others_are_left_alone():
    async def story(scene):
        await scene.sleep(12)
        both = [names.FENCE_FINALIZER, "example.com/backup"]
        await scene.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": both}})
        await scene.cluster.delete(RULE, FIRST)
        await scene.sleep(12)
        found = await rules(scene)
        assert found[FIRST].metadata.finalizers == ("example.com/backup",)
        assert is_proven(found[SECOND])
        # its name is not free yet: the next one to be deleted waits
        await scene.cluster.delete(RULE, SECOND)
        await scene.sleep(12)
        assert list(await rules(scene)) == [FIRST, SECOND]
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        await scene.sleep(12)
        [(name, left)] = (await rules(scene)).items()
        assert (name, is_proven(left)) == (FIRST, True)

    play(story)


def test_the_rule_of_a_driver_that_nobody_manages_any_more_can_be_deleted():
    async def story(scene):
        await scene.cluster.create(RULE, rule_body("other.example.com"))
        await scene.sleep(12)
        assert len(await rules(scene)) == 2
        await scene.cluster.delete(RULE, rule_names("other.example.com")[0])
        await scene.sleep(1)
        assert list(await rules(scene)) == [FIRST]
        assert scene.metric("hami_dra_fence_ready") == 1

    play(story)


# --- 1.36 ------------------------------------------------------------------------------------------------------------------


# --- several drivers -------------------------------------------------------------------------------------------------------

OTHER = "other.example.com"
BOTH = {"managed": frozenset({DRIVER, OTHER}), "own_drivers": frozenset({DRIVER, OTHER})}


async def with_another_driver(scene):
    await scene.add_node("m0", driver=OTHER)
    await scene.add(kinds.DEVICE_CLASS, device_class("other", OTHER))
    await scene.add(kinds.RESOURCE_CLAIM, claim("theirs", device_class="other"))
    await scene.add(kinds.POD, pod("q", claims=["theirs"]))


@pytest.mark.parametrize("trouble", ["refused", "flapping"])
def test_a_fence_that_cannot_be_put_up_stops_its_own_driver_only(trouble):
    """Its rule is refused by an admission webhook, or somebody changes it all the time."""

    async def story(scene):
        async def refuse(request):
            if (
                request.is_write
                and request.kind is RULE
                and OTHER in (request.name or request.body["metadata"]["name"])
            ):
                raise Unavailable("a webhook does not answer")

        async def damage():
            while True:
                await scene.sleep(3)
                patch = {"spec": {"taint": {"effect": "None"}}}
                with suppress(NotFound):
                    await scene.cluster.patch(RULE, rule_names(OTHER)[0], patch)

        damaging = None
        if trouble == "refused":
            scene.cluster.hooks.append(refuse)
        else:
            damaging = asyncio.create_task(damage())
        await with_another_driver(scene)
        await scene.add(kinds.RESOURCE_CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"]))
        await scene.until(lambda: is_allocated(scene), seconds=13)
        await scene.sleep(60)
        assert not await is_allocated(scene, "theirs")
        assert scene.metric("hami_dra_fence_ready") == 0
        if damaging is not None:
            damaging.cancel()
        else:
            scene.cluster.hooks.remove(refuse)
        await scene.until(lambda: is_allocated(scene, "theirs"), seconds=15)
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.check_never_overcommitted()

    play(story, **BOTH)


def test_a_fence_that_falls_stops_its_own_driver_only():
    async def story(scene):
        await scene.sleep(15)
        await tear_out(scene, rule_names(OTHER)[0])
        await scene.sleep(0.01)
        await with_another_driver(scene)
        await scene.add(kinds.RESOURCE_CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"]))
        await scene.until(lambda: is_allocated(scene), seconds=1)
        assert not await is_allocated(scene, "theirs")
        await scene.until(lambda: is_allocated(scene, "theirs"), seconds=15)

    play(story, **BOTH)


def test_drivers_share_one_fresh_list_of_claims():
    async def story(scene):
        lists = 0

        async def count(request):
            nonlocal lists
            lists += request.label == "list resourceclaims" and not request.namespace

        scene.cluster.hooks.append(count)
        drivers = frozenset({DRIVER, *(f"d{number}.example.com" for number in range(8))})
        scene.start(managed=drivers, own_drivers=drivers)
        await scene.sleep(60)
        assert scene.metric("hami_dra_fence_ready") == 1
        assert lists <= 5  # to begin with, for the term, for the fences

    play(story, controller=False)


def test_pods_that_went_while_the_fence_was_down_are_remembered_by_nobody():
    async def story(scene):
        scene.cluster.fail_next(Unavailable("away"), verb="create", kind=RULE, times=10**6)
        for number in range(30):
            await scene.add(kinds.RESOURCE_CLAIM, claim(f"c{number}"))
            await scene.add(kinds.POD, pod(f"p{number}", claims=[f"c{number}"]))
            await scene.sleep(0.1)
            await scene.delete_pod(f"p{number}")
            await scene.cluster.delete(kinds.RESOURCE_CLAIM, f"c{number}", namespace=SPACE)
        await scene.sleep(10)
        kept = census(
            "controller.reconcile.scheduling_cycle",
            "controller.reconcile.queueing.queue",
            "controller.reconcile.fence.fence",
        )
        assert {name for name, count in kept.items() if count >= 30} == set()

    play(story)


# --- 1.36 ------------------------------------------------------------------------------------------------------------------


def test_on_1_36_the_slices_carry_the_fence():
    async def story(scene):
        assert await first_commit(scene) >= 10
        await scene.check_never_overcommitted()

    play(story, version=V1_36, node_options={"fenced": True})


def test_on_1_36_a_slice_without_the_taint_stops_everything_until_it_has_it():
    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM, claim("c"))
        await scene.add(kinds.POD, pod("p", claims=["c"]))
        await scene.sleep(60)
        assert not await is_allocated(scene)
        fenced = gpu_slice("n1", fenced=True)["spec"]["devices"]
        await scene.cluster.patch(kinds.RESOURCE_SLICE, f"n1-{DRIVER}", {"spec": {"devices": fenced}})
        closed = scene.clock.monotonic()
        await scene.until(lambda: is_allocated(scene))
        assert 10 <= scene.clock.monotonic() - closed < 12
        # other slices that come and change with their taint disturb nobody
        await scene.add_node("n5", fenced=True)
        assert scene.metric("hami_dra_fence_ready") == 1
        await scene.add_node("n6", fenced=False)
        await scene.sleep(1)
        assert scene.metric("hami_dra_fence_ready") == 0

    async def open_story(scene):
        await scene.cluster.patch(
            kinds.RESOURCE_SLICE, f"n1-{DRIVER}", {"spec": {"devices": gpu_slice("n1")["spec"]["devices"]}}
        )
        scene.start()
        await story(scene)

    play(open_story, version=V1_36, node_options={"fenced": True}, controller=False)


def test_on_1_36_with_v1beta2_served_rules_are_used():
    async def story(scene):
        await first_commit(scene)
        found = await scene.cluster.get(kinds.DEVICE_TAINT_RULE_V1BETA2, FIRST)
        assert is_intact(found, DRIVER)

    served = (*default_kinds(V1_36), kinds.DEVICE_TAINT_RULE_V1BETA2)
    play(story, version=V1_36, served=served)


def test_a_foreign_driver_that_cannot_be_fenced_is_refused_at_start():
    async def story(scene):
        with pytest.raises(
            ConfigError, match=r"gpu\.example\.com cannot be managed.*DRADeviceTaintRules.*--mode native"
        ):
            await scene.start(own_drivers=frozenset())
        scene.controllers.clear()

    play(story, version=V1_36, controller=False)


def test_slices_count_as_fenced_only_with_the_taint_on_every_device():
    import msgspec

    from hami_dra.api.resource import ResourceSlice

    def read(raw):
        return msgspec.convert(raw, ResourceSlice)

    assert is_fenced_slice(read(gpu_slice("n", fenced=True)))
    assert not is_fenced_slice(read(gpu_slice("n")))
    half = gpu_slice("n", fenced=True)
    del half["spec"]["devices"][0]["taints"]
    assert not is_fenced_slice(read(half))
    assert is_fenced_slice(read(gpu_slice("n", cards=0)))


def test_pods_that_need_no_decision_are_not_held_up_by_the_fence():
    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await scene.add(kinds.POD, pod("free", gated=True))
        await scene.sleep(1)
        assert (await scene.cluster.get(kinds.POD, "free", SPACE)).spec.scheduling_gates == ()

    play(story, quiet_time=1000.0)
