"""Of pods and claims that are gone nothing is kept: neither by the leader nor by a standby, where nobody scrapes metrics."""

import asyncio
import os
from collections import Counter
from typing import Final

import msgspec
import pytest

from controller.reconcile.runtime.decision_log import DecisionLog
from hami_dra.api import kinds, names
from hami_dra.api.allocator import with_allocator
from hami_dra.api.core import Pod
from hami_dra.api.podvolumes import PersistentVolumeClaimSource, Volume
from hami_dra.api.resource import ResourceClaim
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim
from hami_dra.kube.protocol import Invalid
from tests.support.census import census, grown
from tests.support.harness import DRIVER, SPACE, claim, play, pod, template

QUICK = {"quiet_time": 0.0, "probe": False, "leader_election": True}
LIVES: Final = 100_000 if os.environ.get("HAMI_DRA_PROPERTIES") == "soak" else 1_500
WARM: Final = 1_500
"""Lives after which all that does not grow with their number has its size."""
ROUNDS: Final = 6
BOUNDED: Final = {
    "ChangeLog._rows": "of the rows that changed the latest 65,536",
    "Events._known": "the latest series of events",
}
"""What may grow, and up to what."""
VOLUMES: Final = (Volume(name="data", persistent_volume_claim=PersistentVolumeClaimSource(claim_name="data")),)


def kept():
    """Without the cluster in memory, which is not the controller's."""
    return census("controller.", "hami_dra.kube.reflector", "hami_dra.kube.store", "hami_dra.kube.lanes")


def check(before: Counter[str], after: Counter[str]) -> None:
    more = grown(before, after)
    assert {name: count for name, count in more.items() if name not in BOUNDED} == {}


async def leader_and_standby(harness):
    harness.start(identity="leader", **QUICK)
    leader = harness.controller
    leader.decision_log = DecisionLog(most=4)  # full by the time it is counted
    await harness.sleep(30)
    harness.start(identity="standby", **QUICK)
    standby = harness.controller
    await harness.sleep(30)
    assert leader.is_leading
    assert not standby.is_leading
    return leader, standby


# --- very many, as the watches show them -----------------------------------------------------------------------------------


class Life:
    """One pod with a claim of its own."""

    def __init__(self):
        requests = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
        self._pod = decoded(Pod, pod("p", claims=["c"], containers=requests))
        result = {"request": "card", "driver": DRIVER, "pool": "n0", "device": "gpu-0"}
        result |= {"shareID": "a", "consumedCapacity": {"memory": "1Gi"}}
        pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
        allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [pin]}}
        status = {"allocation": with_allocator(allocation, "hami-dra")}
        body = claim("c", 1)
        self._claim = decoded(ResourceClaim, body)
        self._status = decoded(ResourceClaim, body | {"status": status}).status

    def pod(self, number, *, node="", phase="Pending"):
        entries = [msgspec.structs.replace(self._pod.spec.resource_claims[0], resource_claim_name=f"{number}")]
        [main] = self._pod.spec.containers
        resources = msgspec.structs.replace(main.resources, requests={"cpu": "1", f"example.com/r{number}": "1"})
        containers = (msgspec.structs.replace(main, resources=resources),)
        spec = msgspec.structs.replace(
            self._pod.spec, resource_claims=tuple(entries), containers=containers, node_name=node, volumes=VOLUMES
        )
        status = msgspec.structs.replace(self._pod.status, phase=phase)
        return Pod(metadata=named(self._pod.metadata, number), spec=spec, status=status)

    def claim(self, number, *, allocated):
        changed = msgspec.structs.replace(self._claim, metadata=named(self._claim.metadata, number))
        return msgspec.structs.replace(changed, status=self._status) if allocated else changed

    def volume(self, number):
        """Its PersistentVolume: every other one is free and pinned to a host of its own."""
        spec = {"capacity": {"storage": "1Gi"}, "csi": {"driver": "csi.example.com", "volumeHandle": str(number)}}
        if number % 2:
            spec["claimRef"] = {"namespace": str(number), "name": "data"}
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"host-{number}"]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}
        body = {"metadata": {"name": f"pv-{number}"}, "spec": spec, "status": {"phase": "Available"}}
        return decoded(PersistentVolume, body)

    def volume_claim(self, number):
        bound = {names.BIND_COMPLETED: "yes"} if number % 2 else {}
        metadata = {"name": "data", "namespace": str(number), "uid": f"data-{number}", "annotations": bound}
        spec = {"storageClassName": "local", "volumeName": f"pv-{number}" if number % 2 else ""}
        return decoded(PersistentVolumeClaim, {"metadata": metadata, "spec": spec})


def decoded(kind, body):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def named(metadata, number):
    name = str(number)
    return msgspec.structs.replace(metadata, name=name, namespace=name, uid=name, resource_version="1")


def live(controller, life, number, *, looks=False):
    """Pending, allocated, bound, finished, gone. Every fourth pod gets no node; every third claim goes before its pod.

    `looks`: somebody asks in the middle for metrics.
    """
    informers, key = controller.informers, f"{number}/{number}"

    def claim_is(new):
        informers.claims.reflector._report(informers.claim(key), new)

    def pod_is(new):
        informers.pods.reflector._report(informers.pod(key), new)

    def stored(kind, new, old=None):
        informers.storage[kind.name].reflector._report(old, new)

    volume, volume_claim = life.volume(number), life.volume_claim(number)
    stored(kinds.PERSISTENT_VOLUME, volume)
    stored(kinds.PERSISTENT_VOLUME_CLAIM, volume_claim)
    claim_is(life.claim(number, allocated=False))
    pod_is(life.pod(number))
    controller.inventory.rules.node_fit(life.pod(number))
    claim_is(life.claim(number, allocated=True))
    if looks:
        assert list(controller.scrape.blocks())
    if number % 4:
        pod_is(life.pod(number, node="n0"))
        pod_is(life.pod(number, node="n0", phase="Succeeded"))
    for gone in (claim_is, pod_is) if number % 3 == 0 else (pod_is, claim_is):
        gone(None)
    stored(kinds.PERSISTENT_VOLUME_CLAIM, None, volume_claim)
    stored(kinds.PERSISTENT_VOLUME, None, volume)


@pytest.mark.parametrize("scraped", [False, True])
def test_nothing_is_kept_of_very_many(scraped):
    async def story(harness):
        leader, standby = await leader_and_standby(harness)
        life, before = Life(), None
        limited = {"drivers": [{"name": "csi.example.com", "allocatable": {"count": 9}}]}
        await harness.add(kinds.CSI_NODE, {"metadata": {"name": "n0"}, "spec": limited})
        waiting = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
        await harness.add(kinds.STORAGE_CLASS, {"metadata": {"name": "local"}, **waiting})
        await harness.sleep(1)
        for number in range(WARM + LIVES):
            live(leader, life, number, looks=scraped and number % 50 == 0)
            live(standby, life, number)
            if number % 200 == 0:
                await asyncio.sleep(0)
            if number + 1 == WARM:
                await harness.sleep(400)
                before = kept()
        await harness.sleep(400)
        check(before, kept())

    play(story, controller=False, scheduler=False)


# --- a few, as they are lived ----------------------------------------------------------------------------------------------


async def live_through(harness, number):
    """Pods that run and end, that share a claim, that find no room, that are moved, that go in the middle."""
    bodies = [pod(f"run-{number}-{each}", templates=["small"], gated=True) for each in range(6)]
    await harness.add(kinds.RESOURCE_CLAIM, claim(f"shared-{number}", 1))
    bodies += [pod(f"pair-{number}-{each}", claims=[f"shared-{number}"]) for each in range(2)]
    bodies += [pod(f"vast-{number}", templates=["small"], cpu="100", gated=True)]
    bodies += [pod(f"moved-{number}", templates=["small"], schedulerName="default-scheduler", cpu="3")]
    await harness.add(kinds.POD, *bodies)
    await harness.delete_pod(f"run-{number}-5")
    await harness.patch_node("n0", {"spec": {"unschedulable": True}})
    await harness.bound(*(f"run-{number}-{each}" for each in range(5)), f"pair-{number}-0")
    await harness.patch_node("n0", {"spec": {"unschedulable": False}})
    for each in range(5):
        await harness.finish_pod(f"run-{number}-{each}")
    await harness.sleep(60)
    for each in await harness.pods():
        await harness.delete_pod(each.metadata.name)
    await harness.cluster.delete(kinds.RESOURCE_CLAIM, f"shared-{number}", namespace=SPACE)

    async def all_gone():
        return not await harness.pods() and not await harness.claims()

    await harness.until(all_gone)
    await harness.sleep(2_000)


def test_nothing_is_kept_of_what_was_lived_through():
    async def story(harness):
        await leader_and_standby(harness)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small", 1))
        for number in range(2):
            await live_through(harness, number)
        before = kept()
        for number in range(2, ROUNDS):
            await live_through(harness, number)
        check(before, kept())

    play(story, controller=False)


def test_nothing_but_the_object_is_kept_of_a_pod_that_has_failed_and_stays():
    """Its commits were refused, so it waited for the next one; then it failed, as where its deadline is over."""

    def acting() -> Counter[str]:
        """What acts, without what is to be told of it."""
        return census(
            "controller.reconcile.binding.binding_cycle",
            "controller.reconcile.queueing.queue",
            "controller.reconcile.scheduling_cycle",
        )

    async def story(harness):
        await leader_and_standby(harness)
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        before = acting()

        async def refuse(request):
            if request.is_write and request.kind is kinds.RESOURCE_CLAIM:
                raise Invalid("a webhook refuses it")

        harness.cluster.hooks.append(refuse)
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.sleep(5)
        harness.cluster.hooks.remove(refuse)
        failed = {"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}
        await harness.cluster.patch(kinds.POD, "p", failed, namespace=SPACE, subresource="status")
        await harness.sleep(1_000)
        assert grown(before, acting()) == {}

    play(story, controller=False, scheduler=False)
