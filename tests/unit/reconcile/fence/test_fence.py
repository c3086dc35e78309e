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
from hami_dra.api.errors import ConfigError
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.resource import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from hami_dra.kube.embedded import default_kinds
from hami_dra.kube.protocol import NotFound, ServerVersion, Unavailable
from tests.support.census import census
from tests.support.harness import DRIVER, SPACE, claim, device_class, gpu_slice, play, pod, template
from tests.support.mortal import Mortal

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


async def first_commit(harness, name="p"):
    """When the claim `c` is allocated, in the scene's seconds."""
    await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
    await harness.add(kinds.POD, pod(name, claims=["c"]))
    await harness.until(lambda: is_allocated(harness))
    return harness.clock.monotonic()


async def tear_out(harness, name=FIRST):
    """As somebody does who does not want to wait."""
    await harness.cluster.patch(RULE, name, {"metadata": {"finalizers": None}})
    await harness.cluster.delete(RULE, name)


async def rules(harness):
    return {item.metadata.name: item for item in (await harness.cluster.list(RULE)).items}


async def is_allocated(harness, name="c"):
    return (await harness.claim(name)).status.allocation is not None


async def probes(harness):
    return [item for kind in (kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS)
            for item in (await harness.cluster.list(kind, label_selector=names.PROBE_LABEL)).items]  # fmt: skip


def test_nothing_is_committed_before_rule_quiet_time_and_probe():
    async def story(harness):
        at = await first_commit(harness)
        assert 10 <= at < 11.5
        found = await harness.cluster.get(RULE, FIRST)
        assert is_intact(found, DRIVER)
        assert is_proven(found)
        assert await probes(harness) == []
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.check_never_overcommitted()

    play(story)


def test_a_proven_fence_need_not_be_proven_again_by_the_next_leader():
    async def story(harness):
        await harness.sleep(12)
        await harness.stop(harness.controllers[0])
        before = harness.clock.monotonic()
        harness.start()
        assert await first_commit(harness) - before < 1

    play(story)


@pytest.mark.parametrize("damage", ["torn out", "narrowed", "weakened"])
def test_a_damaged_fence_is_put_back_within_a_second_and_proven_again(damage):
    async def story(harness):
        await harness.sleep(12)
        name = FIRST
        if damage == "torn out":
            await tear_out(harness)
        elif damage == "narrowed":
            await harness.cluster.patch(RULE, name, {"spec": {"deviceSelector": {"pool": "n0"}}})
        else:
            await harness.cluster.patch(RULE, name, {"spec": {"taint": {"effect": "None"}}})
        fell = harness.clock.monotonic()

        async def restored():
            found = [item for item in (await harness.cluster.list(RULE)).items if item.metadata.name == name]
            return bool(found) and is_intact(found[0], DRIVER)

        await harness.until(restored, seconds=1)
        assert await first_commit(harness) - fell >= 10
        assert harness.metric("hami_dra_fence_restored_total", driver=DRIVER) == 1
        [event] = await harness.events("FenceRestored")
        assert DRIVER in event["note"]

    play(story)


def test_a_write_already_under_way_does_not_follow_a_fallen_fence():
    async def story(harness):
        await harness.sleep(12)

        async def fell(request):
            if request.label == "patch resourceclaims" and request.name == "c":
                harness.cluster.hooks.remove(fell)
                await tear_out(harness)
                await harness.sleep(0.1)

        harness.cluster.hooks.append(fell)
        start = harness.clock.monotonic()
        assert await first_commit(harness) - start >= 10
        assert harness.metric("hami_dra_commits_total", result="stale") == 1

    play(story)


def test_an_api_server_that_is_away_delays_the_fence_but_does_not_end_it():
    async def story(harness):
        harness.cluster.fail_next(Unavailable("away"), verb="create", kind=RULE, times=5)
        harness.start()
        assert await first_commit(harness) < 20

    play(story, controller=False)


def test_a_scheduler_that_ignores_the_fence_is_noticed_and_nothing_is_committed():
    async def story(harness):
        async def allocate_the_probe():
            for held in await harness.claims():
                if names.PROBE_LABEL in held.metadata.labels and held.status.allocation is None:
                    result = {"request": "device", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
                    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
                    await harness.cluster.patch(
                        kinds.RESOURCE_CLAIM, held.metadata.name, status,
                        namespace=held.metadata.namespace, subresource="status",
                    )  # fmt: skip
            return harness.clock.monotonic() > 60

        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.until(allocate_the_probe, step=0.01)
        assert not await is_allocated(harness)
        assert "although it is fenced" in (await harness.events("FenceNotInForce"))[0]["note"]
        # it is put right: from now on the probe is refused
        refuse_probes(harness, lambda: NO_DEVICES)
        await harness.until(lambda: is_allocated(harness), seconds=30)
        assert is_proven((await rules(harness))[FIRST])
        assert await probes(harness) == []

    play(story, scheduler=False)


def test_without_anybody_looking_at_the_probe_nothing_is_committed():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await harness.sleep(300)
        assert not await is_allocated(harness)
        assert (await harness.pod("p")).spec.scheduling_gates  # a wait that ends by itself
        assert "has not looked" in (await harness.events("FenceNotInForce"))[0]["note"]

    play(story, scheduler=False)


# --- what a probe proves -------------------------------------------------------------------------------------------------

NO_DEVICES = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, not eligible for preemption"


def refuse_probes(harness, message):
    """Stand in for kube-scheduler: refuse every probe pod with what `message()` says at that moment."""

    async def hook(request):
        if request.verb != "get" or request.kind is not kinds.POD or not request.name.startswith("hami-dra-probe"):
            return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message()}
        await harness.cluster.patch(
            kinds.POD, request.name, {"status": {"conditions": [condition]}},
            namespace=request.namespace, subresource="status",
        )  # fmt: skip

    harness.cluster.hooks.append(hook)


async def is_noted(harness):
    return is_proven((await rules(harness))[FIRST])


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 2 Too many pods.",
        'running "DynamicResources" plugin: device class hami-dra-probe does not exist',
        "waiting for resource claim controller to create a resourceclaim for the pod",
    ],
)
def test_a_refusal_that_is_not_about_devices_proves_nothing_but_holds_nobody_up(message):
    async def story(harness):
        said = message
        refuse_probes(harness, lambda: said)
        assert await first_commit(harness) < 30
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.sleep(60)
        assert not await is_noted(harness)
        assert harness.metric("hami_dra_fence_untested", driver=DRIVER) == 1
        said = NO_DEVICES
        await harness.until(lambda: is_noted(harness), seconds=120)
        assert harness.metric("hami_dra_fence_untested", driver=DRIVER) == 0
        assert await probes(harness) == []

    play(story, scheduler=False)


def test_the_probe_goes_to_a_node_that_has_a_device_for_it_and_asks_for_what_is_free():
    """A tenant on every card is the normal state: of a card that is shared the probe asks for the least."""

    async def story(harness):
        for device in ("gpu-0", "gpu-1"):
            await harness.add(kinds.RESOURCE_CLAIM, claim(device, 12))
            await harness.allocate_as_somebody_else(device, "n1", device=device, memory=12)
            await harness.add(kinds.RESOURCE_CLAIM, claim(f"whole-{device}"))
            await take_whole(harness, f"whole-{device}", "n0", device)
        seen = []

        async def hook(request):
            if request.verb == "create" and names.PROBE_LABEL in request.body["metadata"].get("labels", {}):
                seen.append(request.body["spec"])

        harness.cluster.hooks.append(hook)
        harness.start()
        await harness.sleep(15)
        assert await is_noted(harness)
        _, its_claim, its_pod = seen
        [request] = its_claim["devices"]["requests"]
        assert request["exactly"]["capacity"] == {"requests": {"memory": "0"}}
        required = its_pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [term] = required["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == ["n1"]

    play(story, controller=False)


async def take_whole(harness, name, node, device):
    result = {"request": "card", "driver": DRIVER, "pool": node, "device": device}
    status = {"allocation": {"devices": {"results": [result]}}}
    await harness.cluster.patch(kinds.RESOURCE_CLAIM, name, {"status": status}, namespace=SPACE, subresource="status")


def test_where_no_device_is_free_the_fence_holds_untested_until_one_is():
    async def story(harness):
        for device in ("gpu-0", "gpu-1"):
            await harness.add(kinds.RESOURCE_CLAIM, claim(device))
            await take_whole(harness, device, "n0", device)
        first = harness.start()
        await harness.sleep(60)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(harness)
        # the next leader does not take it for proven either
        await harness.stop(first)
        harness.start()
        await harness.sleep(60)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(harness)
        before = await harness.cluster.list(kinds.POD)
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, "gpu-1", namespace=SPACE)
        await harness.until(lambda: is_noted(harness), seconds=30)
        assert await probes(harness) == []
        assert before.items == ()

    play(story, nodes=1, controller=False)


def test_a_rule_that_is_deleted_where_no_device_is_free_goes_all_the_same():
    """Its successor is untested, but was there before: kube-scheduler cannot hear of the one that goes and not of that."""

    async def story(harness):
        await harness.sleep(12)
        assert await is_noted(harness)
        for device in ("gpu-0", "gpu-1"):
            await harness.add(kinds.RESOURCE_CLAIM, claim(device))
            await take_whole(harness, device, "n0", device)
        await harness.cluster.delete(RULE, FIRST)
        await harness.sleep(12)
        [(name, left)] = (await rules(harness)).items()
        assert (name, is_proven(left)) == (SECOND, False)
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, "gpu-0", namespace=SPACE)
        await harness.sleep(30)
        assert is_proven((await rules(harness))[SECOND])

    play(story, nodes=1)


def test_devices_that_come_later_are_tested_when_they_come():
    async def story(harness):
        await harness.sleep(60)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(harness)
        await harness.add_node("n0")
        await harness.until(lambda: is_noted(harness), seconds=30)

    play(story, nodes=0)


def test_a_device_that_is_taken_while_kube_scheduler_looks_proves_nothing():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("theirs", 4))
        taken = 0

        async def hook(request):
            nonlocal taken
            if request.label == "create pods" and names.PROBE_LABEL in request.body["metadata"]["labels"]:
                taken += 1
                if taken == 1:
                    await harness.allocate_as_somebody_else("theirs", "n0", device="gpu-0", memory=4)
                    await harness.sleep(0.1)

        harness.cluster.hooks.append(hook)
        refuse_probes(harness, lambda: NO_DEVICES)
        harness.start()
        await harness.sleep(15)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert not await is_noted(harness)
        await harness.until(lambda: is_noted(harness), seconds=30)
        assert taken == 2

    play(story, nodes=1, controller=False, scheduler=False)


def test_what_an_earlier_probe_left_does_not_take_the_next_one_apart():
    """Its pod goes slowly; class and claim of the next one must be there when it does."""

    async def story(harness):
        seen = []

        async def hook(request):
            if request.verb == "get" and request.name.startswith("hami-dra-probe") and request.kind is kinds.POD:
                classes = await harness.cluster.list(kinds.DEVICE_CLASS, label_selector=names.PROBE_LABEL)
                seen.append(len(classes.items))

        body = pod("hami-dra-probe", schedulerName="nobody")
        body["metadata"] |= {
            "namespace": names.PROBE_NAMESPACE,
            "labels": {names.PROBE_LABEL: "true"},
            "finalizers": ["example.com/slow"],
        }
        await harness.cluster.create(kinds.POD, body, namespace=names.PROBE_NAMESPACE)
        harness.cluster.hooks.append(hook)
        harness.start()
        await harness.sleep(20)
        assert harness.metric("hami_dra_fence_ready") == 0
        patch = {"metadata": {"finalizers": None}}
        await harness.cluster.patch(kinds.POD, "hami-dra-probe", patch, namespace=names.PROBE_NAMESPACE)
        await harness.until(lambda: is_noted(harness), seconds=20)
        assert set(seen) == {1}

    play(story, controller=False)


def test_a_fence_that_held_untested_and_does_not_hold_is_noticed():
    async def story(harness):
        said = "0/1 nodes are available: 1 Too many pods."
        refuse_probes(harness, lambda: said)
        await harness.sleep(40)
        assert harness.metric("hami_dra_fence_ready") == 1

        async def hook(request):
            if request.label == "create pods" and names.PROBE_LABEL in request.body["metadata"]["labels"]:
                [held] = [each for each in await harness.claims() if names.PROBE_LABEL in each.metadata.labels]
                result = {"request": "device", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
                status = {"allocation": {"devices": {"results": [result]}}}
                await harness.cluster.patch(
                    kinds.RESOURCE_CLAIM, held.metadata.name, {"status": status},
                    namespace=held.metadata.namespace, subresource="status",
                )  # fmt: skip

        harness.cluster.hooks.append(hook)

        async def fallen():
            return harness.metric("hami_dra_fence_ready") == 0

        await harness.until(fallen, seconds=120)
        assert "although it is fenced" in (await harness.events("FenceNotInForce"))[0]["note"]

    play(story, nodes=1, scheduler=False)


# --- somebody deletes the rule -----------------------------------------------------------------------------------------------


def test_a_deleted_rule_stays_in_force_until_another_one_is_proven_and_nothing_waits_for_that():
    async def story(harness):
        await harness.sleep(12)
        fence_was_down = []
        harness.cluster.hooks.append(watch_for_a_gap(harness, fence_was_down))
        await harness.cluster.delete(RULE, FIRST)
        deleted = harness.clock.monotonic()
        assert await first_commit(harness) - deleted < 1
        found = await rules(harness)
        assert found[FIRST].metadata.deletion_timestamp is not None
        assert is_kept(found[SECOND], DRIVER)
        assert not is_proven(found[SECOND])
        await harness.sleep(5)
        assert FIRST in await rules(harness)
        await harness.sleep(7)
        [(name, left)] = (await rules(harness)).items()
        assert (name, is_proven(left)) == (SECOND, True)
        assert fence_was_down == []
        assert harness.metric("hami_dra_fence_ready") == 1
        assert harness.metric("hami_dra_fence_restored_total", driver=DRIVER) == 1
        [event] = await harness.events("FenceRestored")
        assert event["regarding"]["uid"] == found[FIRST].metadata.uid
        assert f"stays in force until {SECOND}" in event["note"]
        # and back
        await harness.cluster.delete(RULE, SECOND)
        await harness.sleep(12)
        assert list(await rules(harness)) == [FIRST]
        assert fence_was_down == []

    play(story)


def watch_for_a_gap(harness, found):
    """A hook: puts into `found` each request before which there was no rule in force."""
    looking = False

    async def look(request):
        nonlocal looking
        if looking:
            return
        looking = True
        try:
            if not await rules(harness):
                found.append(request)
        finally:
            looking = False

    return look


def test_whoever_deletes_the_successors_too_never_gets_a_moment_without_a_rule():
    async def story(harness):
        await harness.sleep(12)
        fence_was_down = []
        harness.cluster.hooks.append(watch_for_a_gap(harness, fence_was_down))
        first = (await rules(harness))[FIRST].metadata.uid
        for _ in range(20):
            for name in await rules(harness):
                await harness.cluster.delete(RULE, name)
            await harness.sleep(1.5)
        found = await rules(harness)
        assert found[FIRST].metadata.uid == first  # what holds stays until something else does
        assert is_kept(found[SECOND], DRIVER)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert await first_commit(harness)
        await harness.sleep(12)
        assert list(await rules(harness)) == [SECOND]
        assert fence_was_down == []

    play(story)


def test_a_rule_torn_out_while_its_successor_is_not_proven_ends_the_fence():
    async def story(harness):
        await harness.sleep(12)
        await harness.cluster.delete(RULE, FIRST)
        await harness.sleep(3)
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        fell = harness.clock.monotonic()
        await harness.sleep(0.1)
        assert harness.metric("hami_dra_fence_ready") == 0
        assert 10 <= await first_commit(harness) - fell < 12

    play(story)


def test_a_rule_deleted_while_no_controller_runs_waits_for_one():
    async def story(harness):
        await harness.sleep(12)
        await harness.stop(harness.controllers[0])
        await harness.cluster.delete(RULE, FIRST)
        await harness.sleep(1000)
        assert list(await rules(harness)) == [FIRST]
        before = harness.clock.monotonic()
        harness.start()
        assert await first_commit(harness) - before >= 10
        await harness.sleep(1)
        assert list(await rules(harness)) == [SECOND]

    play(story)


def test_both_rules_deleted_while_no_controller_runs():
    async def story(harness):
        await harness.cluster.create(RULE, rule_body(DRIVER, SECOND))
        for name in (FIRST, SECOND):
            await harness.cluster.delete(RULE, name)
        harness.start()
        assert await first_commit(harness) >= 10
        await harness.sleep(1)
        [(_, left)] = (await rules(harness)).items()
        assert is_kept(left, DRIVER)

    async def begin(harness):
        await harness.cluster.create(RULE, rule_body(DRIVER))
        await story(harness)

    play(begin, controller=False)


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after it"])
@pytest.mark.parametrize("write", [1, 2, 6, 11, 12], ids=["successor", "probe", "amid the probe", "proof", "release"])
def test_a_controller_that_dies_while_it_replaces_a_rule_leaves_no_gap_and_the_next_one_goes_on(write, before):
    async def story(harness):
        mortal = Mortal(harness.cluster, 0, before=before)
        first = harness.start(through=mortal)
        await harness.sleep(12)
        fence_was_down = []
        harness.cluster.hooks.append(watch_for_a_gap(harness, fence_was_down))
        mortal.at_write(mortal.writes + write, before=before)
        await harness.cluster.delete(RULE, FIRST)
        await harness.sleep(15)
        assert mortal.dead.is_set()
        await harness.stop(first)
        harness.start()
        await first_commit(harness)
        await harness.sleep(15)
        [(name, left)] = (await rules(harness)).items()
        assert (name, is_kept(left, DRIVER), is_proven(left)) == (SECOND, True, True)
        assert fence_was_down == []
        assert await probes(harness) == []

    play(story, controller=False)


def test_a_rule_of_a_version_that_knew_no_finalizer_gets_it_and_stays_proven():
    async def story(harness):
        await harness.sleep(12)
        await harness.stop(harness.controllers[0])
        await harness.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        before = harness.clock.monotonic()
        harness.start()
        assert await first_commit(harness) - before < 1
        assert is_kept((await rules(harness))[FIRST], DRIVER)
        # somebody takes it off: it comes back, and the fence was never down
        await harness.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        await harness.sleep(1)
        assert is_kept((await rules(harness))[FIRST], DRIVER)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert harness.metric("hami_dra_fence_restored_total", driver=DRIVER) == 0

    play(story)


def test_finalizers_of_others_are_left_alone():
    async def story(harness):
        await harness.sleep(12)
        both = [names.FENCE_FINALIZER, "example.com/backup"]
        await harness.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": both}})
        await harness.cluster.delete(RULE, FIRST)
        await harness.sleep(12)
        found = await rules(harness)
        assert found[FIRST].metadata.finalizers == ("example.com/backup",)
        assert is_proven(found[SECOND])
        # its name is not free yet: the next one to be deleted waits
        await harness.cluster.delete(RULE, SECOND)
        await harness.sleep(12)
        assert list(await rules(harness)) == [FIRST, SECOND]
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.cluster.patch(RULE, FIRST, {"metadata": {"finalizers": None}})
        await harness.sleep(12)
        [(name, left)] = (await rules(harness)).items()
        assert (name, is_proven(left)) == (FIRST, True)

    play(story)


def test_the_rule_of_a_driver_that_nobody_manages_any_more_can_be_deleted():
    async def story(harness):
        await harness.cluster.create(RULE, rule_body("other.example.com"))
        await harness.sleep(12)
        assert len(await rules(harness)) == 2
        await harness.cluster.delete(RULE, rule_names("other.example.com")[0])
        await harness.sleep(1)
        assert list(await rules(harness)) == [FIRST]
        assert harness.metric("hami_dra_fence_ready") == 1

    play(story)


# --- 1.36 ------------------------------------------------------------------------------------------------------------------


# --- several drivers -------------------------------------------------------------------------------------------------------

OTHER = "other.example.com"
BOTH = {"managed": frozenset({DRIVER, OTHER}), "own_drivers": frozenset({DRIVER, OTHER})}


async def with_another_driver(harness):
    await harness.add_node("m0", driver=OTHER)
    await harness.add(kinds.DEVICE_CLASS, device_class("other", OTHER))
    await harness.add(kinds.RESOURCE_CLAIM, claim("theirs", device_class="other"))
    await harness.add(kinds.POD, pod("q", claims=["theirs"]))


@pytest.mark.parametrize("trouble", ["refused", "flapping"])
def test_a_fence_that_cannot_be_put_up_stops_its_own_driver_only(trouble):
    """Its rule is refused by an admission webhook, or somebody changes it all the time."""

    async def story(harness):
        async def refuse(request):
            if (
                request.is_write
                and request.kind is RULE
                and OTHER in (request.name or request.body["metadata"]["name"])
            ):
                raise Unavailable("a webhook does not answer")

        async def damage():
            while True:
                await harness.sleep(3)
                patch = {"spec": {"taint": {"effect": "None"}}}
                with suppress(NotFound):
                    await harness.cluster.patch(RULE, rule_names(OTHER)[0], patch)

        damaging = None
        if trouble == "refused":
            harness.cluster.hooks.append(refuse)
        else:
            damaging = asyncio.create_task(damage())
        await with_another_driver(harness)
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.until(lambda: is_allocated(harness), seconds=13)
        await harness.sleep(60)
        assert not await is_allocated(harness, "theirs")
        assert harness.metric("hami_dra_fence_ready") == 0
        if damaging is not None:
            damaging.cancel()
        else:
            harness.cluster.hooks.remove(refuse)
        await harness.until(lambda: is_allocated(harness, "theirs"), seconds=15)
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.check_never_overcommitted()

    play(story, **BOTH)


def test_a_fence_that_falls_stops_its_own_driver_only():
    async def story(harness):
        await harness.sleep(15)
        await tear_out(harness, rule_names(OTHER)[0])
        await harness.sleep(0.01)
        await with_another_driver(harness)
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.until(lambda: is_allocated(harness), seconds=1)
        assert not await is_allocated(harness, "theirs")
        await harness.until(lambda: is_allocated(harness, "theirs"), seconds=15)

    play(story, **BOTH)


def test_drivers_share_one_fresh_list_of_claims():
    async def story(harness):
        lists = 0

        async def count(request):
            nonlocal lists
            lists += request.label == "list resourceclaims" and not request.namespace

        harness.cluster.hooks.append(count)
        drivers = frozenset({DRIVER, *(f"d{number}.example.com" for number in range(8))})
        harness.start(managed=drivers, own_drivers=drivers)
        await harness.sleep(60)
        assert harness.metric("hami_dra_fence_ready") == 1
        assert lists <= 5  # to begin with, for the term, for the fences

    play(story, controller=False)


def test_pods_that_went_while_the_fence_was_down_are_remembered_by_nobody():
    async def story(harness):
        harness.cluster.fail_next(Unavailable("away"), verb="create", kind=RULE, times=10**6)
        for number in range(30):
            await harness.add(kinds.RESOURCE_CLAIM, claim(f"c{number}"))
            await harness.add(kinds.POD, pod(f"p{number}", claims=[f"c{number}"]))
            await harness.sleep(0.1)
            await harness.delete_pod(f"p{number}")
            await harness.cluster.delete(kinds.RESOURCE_CLAIM, f"c{number}", namespace=SPACE)
        await harness.sleep(10)
        kept = census(
            "controller.reconcile.scheduling_cycle",
            "controller.reconcile.queueing.queue",
            "controller.reconcile.fence.fence",
        )
        assert {name for name, count in kept.items() if count >= 30} == set()

    play(story)


# --- 1.36 ------------------------------------------------------------------------------------------------------------------


def test_on_1_36_the_slices_carry_the_fence():
    async def story(harness):
        assert await first_commit(harness) >= 10
        await harness.check_never_overcommitted()

    play(story, version=V1_36, node_options={"fenced": True})


def test_on_1_36_a_slice_without_the_taint_stops_everything_until_it_has_it():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.sleep(60)
        assert not await is_allocated(harness)
        fenced = gpu_slice("n1", fenced=True)["spec"]["devices"]
        await harness.cluster.patch(kinds.RESOURCE_SLICE, f"n1-{DRIVER}", {"spec": {"devices": fenced}})
        closed = harness.clock.monotonic()
        await harness.until(lambda: is_allocated(harness))
        assert 10 <= harness.clock.monotonic() - closed < 12
        # other slices that come and change with their taint disturb nobody
        await harness.add_node("n5", fenced=True)
        assert harness.metric("hami_dra_fence_ready") == 1
        await harness.add_node("n6", fenced=False)
        await harness.sleep(1)
        assert harness.metric("hami_dra_fence_ready") == 0

    async def open_story(harness):
        await harness.cluster.patch(
            kinds.RESOURCE_SLICE, f"n1-{DRIVER}", {"spec": {"devices": gpu_slice("n1")["spec"]["devices"]}}
        )
        harness.start()
        await story(harness)

    play(open_story, version=V1_36, node_options={"fenced": True}, controller=False)


def test_on_1_36_with_v1beta2_served_rules_are_used():
    async def story(harness):
        await first_commit(harness)
        found = await harness.cluster.get(kinds.DEVICE_TAINT_RULE_V1BETA2, FIRST)
        assert is_intact(found, DRIVER)

    served = (*default_kinds(V1_36), kinds.DEVICE_TAINT_RULE_V1BETA2)
    play(story, version=V1_36, served=served)


def test_a_foreign_driver_that_cannot_be_fenced_is_refused_at_start():
    async def story(harness):
        with pytest.raises(
            ConfigError, match=r"gpu\.example\.com cannot be managed.*DRADeviceTaintRules.*--mode native"
        ):
            await harness.start(own_drivers=frozenset())
        harness.controllers.clear()

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
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await harness.add(kinds.POD, pod("free", gated=True))
        await harness.sleep(1)
        assert (await harness.cluster.get(kinds.POD, "free", SPACE)).spec.scheduling_gates == ()

    play(story, quiet_time=1000.0)
