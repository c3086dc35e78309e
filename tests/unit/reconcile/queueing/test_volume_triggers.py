"""A pod whose volume is not ready waits without devices, and is woken by what it waits for."""

import logging

import pytest

from controller.decide import decide
from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Forbidden
from tests.support.gang_objects import in_labelled_group
from tests.support.harness import SPACE, play, pod, template

HOST = "kubernetes.io/hostname"
QUICK = {"quiet_time": 0.0, "probe": False, "decide": decide}
"""With the real `decide`."""
AT_ONCE = 2.0
"""Seconds of the scene's time."""


def storage_class(name, mode):
    return {"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}


def volume(name, storage_class, *hosts, claim=""):
    where = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": list(hosts)}]}]
    spec = {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": where}}
    if claim:
        spec["claimRef"] = {"namespace": SPACE, "name": claim}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Bound" if claim else "Available"}}


def claim(name, storage_class, *, bound="", modes=("ReadWriteOnce",)):
    annotations = {names.BIND_COMPLETED: "yes"} if bound else {}
    spec = {"accessModes": list(modes), "storageClassName": storage_class, "volumeName": bound}
    spec["resources"] = {"requests": {"storage": "8Gi"}}
    return {"metadata": {"name": name, "namespace": SPACE, "annotations": annotations}, "spec": spec}


def using(name, *claims, **options):
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": each}} for n, each in enumerate(claims)]
    return pod(name, templates=["small"], volumes=volumes, **options)


async def furnish(harness):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
    for name in ("n0", "n1"):
        await harness.patch_node(name, {"metadata": {"labels": {HOST: name}}})


async def devices_held(harness):
    return sum(each.status.allocation is not None for each in await harness.claims())


async def notes(harness, reason="VolumeNotReady"):
    return [each["note"] for each in await harness.events(reason)]


def test_a_missing_claim_is_named_holds_no_device_and_wakes_the_pod_when_it_is_bound():
    async def story(harness):
        await furnish(harness)
        await harness.add(kinds.STORAGE_CLASS, storage_class("now", "Immediate"))
        await harness.add(kinds.POD, using("p", "data", gated=True))
        await harness.sleep(30)
        [note] = await notes(harness)
        assert note.startswith("VolumeRestrictions: PersistentVolumeClaim default/data does not exist; create it")
        assert await devices_held(harness) == 0
        assert (await harness.pod("p")).spec.scheduling_gates == (), "people and autoscalers see it after the patience"
        await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("data", "now"))
        await harness.sleep(5)
        assert any("binds immediately" in each for each in await notes(harness))
        assert await devices_held(harness) == 0
        await harness.add(kinds.PERSISTENT_VOLUME, volume("pv", "now", "n1", claim="data"))
        bound = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "pv"}}
        await harness.cluster.patch(kinds.PERSISTENT_VOLUME_CLAIM, "data", bound, namespace=SPACE)
        await harness.bound("p", seconds=AT_ONCE)
        assert await harness.node_of("p") == "n1"

    play(story, **QUICK)


@pytest.mark.parametrize("late", ["class", "volume"])
def test_whatever_is_missing_wakes_the_pod_when_it_comes(late):
    async def story(harness):
        await furnish(harness)
        if late == "class":
            await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("data", "later"))
            await harness.add(kinds.PERSISTENT_VOLUME, volume("pv", "later", "n1"))
        else:
            await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("data", "", bound="pv"))
        await harness.add(kinds.POD, using("p", "data"))
        await harness.sleep(10)
        assert await devices_held(harness) == 0
        if late == "class":
            await harness.add(kinds.STORAGE_CLASS, storage_class("later", "WaitForFirstConsumer"))
        else:
            await harness.add(kinds.PERSISTENT_VOLUME, volume("pv", "", "n1", claim="data"))
        await harness.bound("p", seconds=AT_ONCE)
        assert await harness.node_of("p") == "n1"

    play(story, **QUICK)


def test_a_claim_for_one_pod_is_passed_on_when_that_pod_is_gone():
    async def story(harness):
        await furnish(harness)
        await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("data", "", bound="pv", modes=("ReadWriteOncePod",)))
        await harness.add(kinds.PERSISTENT_VOLUME, volume("pv", "", "n0", "n1", claim="data"))
        await harness.add(kinds.POD, using("first", "data"))
        await harness.bound("first")
        await harness.add(kinds.POD, using("second", "data"))
        await harness.sleep(10)
        assert "Pod default/first uses it" in (await notes(harness))[0]
        assert await devices_held(harness) == 1
        await harness.delete_pod("first")
        await harness.bound("second", seconds=AT_ONCE)

    play(story, **QUICK)


@pytest.mark.parametrize("gangs", [("g",), ("g", "h")])
def test_members_that_use_one_claim_for_one_pod_are_refused_once(gangs):
    """Each trial gave the claim back, which woke all that name it: the controller did nothing else from then on."""

    async def story(harness):
        await furnish(harness)
        await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("data", "", bound="pv", modes=("ReadWriteOncePod",)))
        await harness.add(kinds.PERSISTENT_VOLUME, volume("pv", "", "n0", "n1", claim="data"))
        members = [(gang, f"{gang}{number}") for gang in gangs for number in range(2)]
        await harness.add(
            kinds.POD, *(in_labelled_group(using(name, "data", gated=True), gang, 2) for gang, name in members)
        )
        await harness.sleep(10)
        assert harness.metric("hami_dra_gang_decisions_total", result="refused") <= 4
        assert await devices_held(harness) == 0
        await harness.add(kinds.POD, using("single", "data"))
        await harness.bound("single", seconds=AT_ONCE)

    play(story, **QUICK)


def test_a_gang_is_woken_when_the_pod_that_uses_the_claim_of_one_member_is_gone():
    async def story(harness):
        await furnish(harness)
        await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("data", "", bound="pv", modes=("ReadWriteOncePod",)))
        await harness.add(kinds.PERSISTENT_VOLUME, volume("pv", "", "n0", "n1", claim="data"))
        await harness.add(kinds.POD, using("first", "data"))
        await harness.bound("first")
        members = (using("g0", gated=True), using("g1", "data", gated=True))
        await harness.add(kinds.POD, *(in_labelled_group(each, "g", 2) for each in members))
        await harness.sleep(10)
        assert await devices_held(harness) == 1
        await harness.delete_pod("first")
        await harness.bound("g0", "g1", seconds=AT_ONCE)

    play(story, **QUICK)


def test_of_two_pods_of_a_batch_one_gets_the_only_volume():
    async def story(harness):
        await furnish(harness)
        await harness.add(kinds.STORAGE_CLASS, storage_class("local", "WaitForFirstConsumer"))
        await harness.add(kinds.PERSISTENT_VOLUME, volume("only", "local", "n1"))
        await harness.add(kinds.PERSISTENT_VOLUME_CLAIM, claim("a", "local"), claim("b", "local"))
        await harness.add(kinds.POD, using("a", "a"), using("b", "b"))
        await harness.sleep(10)
        assert await devices_held(harness) == 1
        assert [each.spec.node_name for each in await harness.pods()] == ["n1", ""]
        [note] = [each for each in await notes(harness, "FilteringFailed") if "NodeVolumeNotAvailable" in each]
        assert "VolumeBinding: no free PersistentVolume of StorageClass local fits" in note
        await harness.add(kinds.PERSISTENT_VOLUME, volume("another", "local", "n0"))
        await harness.bound("b", seconds=AT_ONCE)
        assert await harness.node_of("b") == "n0"

    play(story, **QUICK)


def test_without_the_right_to_read_volumes_pods_are_placed_and_the_log_says_so(caplog):
    async def story(harness):
        harness.cluster.fail_next(
            Forbidden("list persistentvolumes: forbidden"), verb="list", kind=kinds.PERSISTENT_VOLUME, times=10**6
        )
        with caplog.at_level(logging.WARNING):
            harness.start(**QUICK)
            await furnish(harness)
            await harness.add(kinds.POD, using("p", "data"))
            await harness.bound("p")
        assert "list persistentvolumes: forbidden; volumes of pods are considered without it" in caplog.text
        assert harness.controller.informers.problems() == []
        harness.cluster.clear_faults()
        informer = harness.controller.informers.storage[kinds.PERSISTENT_VOLUME.name]

        async def readable():
            return informer.reflector.is_synced

        await harness.until(readable)
        await harness.add(kinds.POD, using("q", "data"))
        await harness.sleep(5)
        assert "PersistentVolumeClaim default/data does not exist" in (await notes(harness))[0]

    play(story, controller=False)
