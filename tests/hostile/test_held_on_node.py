"""The node driver tells of claims that are gone while it still holds what they had: the whole driver of a simulated machine, called
as kubelet calls it, on a cluster in memory. What a controller that starts then counts is read from the cluster alone.
"""

import asyncio
import contextlib

import pytest

from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from hami_dra.api import heldclaims, names
from hami_dra.api.kinds import NODE, POD, RESOURCE_CLAIM, RESOURCE_QUOTA, RESOURCE_SLICE
from hami_dra.driver.kubelet.proto import dra_v1_pb2, dra_v1_pb2_grpc
from hami_dra.driver.prepare import vanished
from hami_dra.driver.prepare.records import ContainerView, GrantedDevice, Record
from hami_dra.driver.prepare.vanished import VanishedClaims, held_claim
from hami_dra.driver.simulated import machine
from hami_dra.kube.protocol import Forbidden, Unavailable
from tests.support.quotas import quota
from tests.support.steered_cluster import SteeredCluster
from tests.unit.driver.node.test_wiring import (
    DRIVER,
    NODE_NAME,
    allocated,
    cluster_with_node,
    connected,
    folder,
    registered,
    running,
    until,
)

__all__ = ["folder"]  # a fixture
CARD = DeviceId(DRIVER, NODE_NAME, "gpu-2")
OFTEN = {"check_claims_every": 0.05}


def cards():
    return machine("g4dn.12xlarge", NODE_NAME).cards


async def counted(cluster):
    """(shares of the card, memory of it, cards charged to the quota) by a controller that has just started."""
    inventory = Inventory()
    for kind, feed in (
        (NODE, inventory.node_changed),
        (RESOURCE_SLICE, inventory.slice_changed),
        (RESOURCE_QUOTA, inventory.quota_changed),
        (RESOURCE_CLAIM, inventory.claim_changed),
        (POD, inventory.pod_changed),
    ):
        for each in (await cluster.list(kind)).items:
            feed(None, each)
    used = inventory.quotas.used("default").get("nvidia.com/gpu", 0)
    return inventory.usage.shares(CARD), inventory.usage.consumed(CARD).get("memory", 0), used


async def reported(cluster):
    """Uids of the claims that the slice tells of."""
    (found,) = (await cluster.list(RESOURCE_SLICE)).items
    text = found.metadata.annotations.get(names.HELD_CLAIMS, "")
    return [each.uid for each in heldclaims.decode(text)] if text else []


async def strip_and_delete(cluster, name):
    """The finding: both are in the hands of whoever may edit the claim."""
    await cluster.patch(RESOURCE_CLAIM, name, {"metadata": {"finalizers": None}}, namespace="default")
    await cluster.delete(RESOURCE_CLAIM, name, namespace="default")


@contextlib.asynccontextmanager
async def kubelet_of(folder):
    async with connected(await registered(folder)) as channel:
        yield dra_v1_pb2_grpc.DRAPluginStub(channel)


async def prepared(kubelet, claim):
    reference = dra_v1_pb2.Claim(namespace="default", name=claim.metadata.name, uid=claim.metadata.uid)
    answer = await kubelet.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference]))
    assert answer.claims[claim.metadata.uid].error == ""
    return reference


async def test_a_controller_that_starts_knows_what_is_held_and_a_driver_that_starts_goes_on_telling(folder):
    cluster = await cluster_with_node()
    await cluster.create(RESOURCE_QUOTA, quota({"nvidia.com/gpu": 1}))
    claim = await allocated(cluster, "one", "gpu-2")
    async with running(folder, cluster, cards(), **OFTEN), kubelet_of(folder) as kubelet:
        reference = await prepared(kubelet, claim)
        assert (await counted(cluster), await reported(cluster)) == ((1, 4 << 30, 1), [])
        await strip_and_delete(cluster, "one")
        await until(lambda: reported(cluster))
        assert await counted(cluster) == (1, 4 << 30, 1)
    assert await reported(cluster) == [claim.metadata.uid], "what was said stands while nobody is there"
    body = {"metadata": {"name": "one", "namespace": "default"}, "spec": {"devices": {}}}
    await cluster.create(RESOURCE_CLAIM, body)  # another claim of that name
    async with running(folder, cluster, cards(), **OFTEN), kubelet_of(folder) as kubelet:
        await asyncio.sleep(0.5)
        assert (await counted(cluster), await reported(cluster)) == ((1, 4 << 30, 1), [claim.metadata.uid])
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
        assert (await kubelet.NodeUnprepareResources(request)).claims[claim.metadata.uid].error == ""

        async def nothing_reported():
            return not await reported(cluster)

        await until(nothing_reported)
        assert await counted(cluster) == (0, 0, 0)


async def test_slices_that_kubelet_wipes_come_back_with_what_is_held(folder):
    cluster = await cluster_with_node()
    claim = await allocated(cluster, "one", "gpu-2")
    async with running(folder, cluster, cards(), **OFTEN), kubelet_of(folder) as kubelet:
        await prepared(kubelet, claim)
        await strip_and_delete(cluster, "one")
        await until(lambda: reported(cluster))
        (found,) = (await cluster.list(RESOURCE_SLICE)).items
        await cluster.delete(RESOURCE_SLICE, found.metadata.name)

        async def back():
            return (await cluster.list(RESOURCE_SLICE)).items

        await until(back)
        assert await reported(cluster) == [claim.metadata.uid]


# -- what is asked, and what it costs --------------------------------------------------------------------------------------


class Asked:
    """A cluster that answers for each claim by name: its uid, or the error to raise. Counts."""

    def __init__(self, **answers):
        self.answers = answers
        self.count = 0

    async def get(self, kind, name, namespace=""):
        self.count += 1
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        cluster = SteeredCluster()
        made = await cluster.create(kind, {"metadata": {"name": name, "namespace": namespace}, "spec": {"devices": {}}})
        return type(made)(metadata=type(made.metadata)(name=name, namespace=namespace, uid=answer))


def record(name, **more):
    held = GrantedDevice(request="r", pool="n1", device="gpu-0", card="GPU-0", shared=True, consumed={"memory": 5})
    return Record(namespace="ns", name=name, uid=f"uid-{name}", allocation="x", state="prepared", held=(held,), **more)


def watch(cluster, *records, known=True):
    async def refresh():
        return known

    kept = {each.uid: each for each in records}
    changes = []
    found = VanishedClaims(
        cluster, DRIVER, lambda: kept, refresh, lambda: changes.append(1), interval=300.0, dice=lambda: 0.5
    )
    return found, kept, changes


def uids(found):
    return [each.uid for each in heldclaims.decode(found.report())] if found.report() else []


async def test_nothing_is_said_before_all_were_asked_for():
    found, _, changes = watch(Asked(a="uid-a"), record("a"))
    assert found.report() is None
    assert await found.look()
    assert (found.report(), changes) == ("", [1])


@pytest.mark.parametrize("error", [Unavailable("down"), Forbidden("no right")])
async def test_what_cannot_be_asked_is_not_gone_and_the_rest_is_asked(error):
    cluster = Asked(a=error, b="another")
    found, _, _ = watch(cluster, record("a"), record("b"))
    assert not await found.look()
    assert uids(found) == ["uid-b"]
    cluster.answers["a"] = "uid-a"
    assert await found.look()
    assert uids(found) == ["uid-b"]


async def test_a_checkpoint_that_cannot_be_read_takes_nothing_back():
    found, _, changes = watch(Asked(), known=False)
    assert not await found.look()
    assert (found.report(), changes) == (None, [])


async def test_a_claim_that_is_gone_is_asked_for_once():
    cluster = Asked(a="another", b="uid-b")
    found, kept, changes = watch(cluster, record("a"), record("b"))
    await found.look()
    await found.look()
    assert cluster.count == 3
    del kept["uid-a"]
    found.prepared_changed()
    assert (uids(found), len(changes)) == ([], 2)
    await found.look()
    assert cluster.count == 4


async def test_an_object_that_nobody_imagined_stops_nothing():
    found, _, _ = watch(Asked(a=ValueError("a bug"), b="another"), record("a"), record("b"))
    await found.look()
    assert uids(found) == ["uid-b"]


async def test_one_get_for_each_claim_in_each_interval(monkeypatch):
    """The arithmetic of the docs: 40,000 claims in 5 minutes are 133 GETs a second."""
    cluster, pauses = Asked(**{f"c{number}": f"uid-c{number}" for number in range(8)}), []
    found, _, _ = watch(cluster, *(record(f"c{number}") for number in range(8)))

    async def pause(_event, seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(vanished, "wait_at_most", pause)
    with contextlib.suppress(asyncio.CancelledError):
        await found.run()
    assert (cluster.count, pauses) == (24, [300.0] * 3)


async def test_after_a_restore_of_etcd_all_are_asked_for_at_once():
    """Claims may be gone then, and gone ones may be back."""
    cluster = Asked(a="another", b="uid-b")
    found, _, _ = watch(cluster, record("a"), record("b"))
    running = asyncio.create_task(found.run())
    await asyncio.sleep(0.01)
    assert uids(found) == ["uid-a"]
    cluster.answers.update(a="uid-a", b="another")
    found.look_again()
    await asyncio.sleep(0.01)
    assert uids(found) == ["uid-b"]
    running.cancel()


def test_what_a_record_holds():
    view = ContainerView(name="v", asked=(("uid-a", "r"),), pods=("p1", "p2"))
    looks_on = GrantedDevice(request="r", pool="n1", device="gpu-1", card="GPU-1", admin=True)
    alone = GrantedDevice(request="r", pool="n1", device="gpu-0-mig-1g-5gb-0", card="GPU-0")
    found = held_claim(DRIVER, record("a", views=(view,)))
    assert (found.namespace, found.name, found.uid, found.pods) == ("ns", "a", "uid-a", ("p1", "p2"))
    (device,) = found.devices
    assert (device.device, device.consumed) == ("gpu-0", {"memory": 5})
    others = Record(namespace="ns", name="a", uid="u", allocation="x", state="prepared", held=(looks_on, alone))
    (device,) = held_claim(DRIVER, others).devices
    assert (device.device, device.consumed) == ("gpu-0-mig-1g-5gb-0", None)


def test_the_promise_to_a_tenant_is_kept():
    """MetaX: tenants of a card have one quality of service, as the allocation says it."""
    held = GrantedDevice(
        request="r",
        pool="n1",
        device="gpu-0",
        card="GPU-0",
        shared=True,
        consumed={"memory": 5, "cores": 10},
        parameters={"qos": "burst-share"},
    )
    found = Record(namespace="ns", name="a", uid="u", allocation="x", state="prepared", held=(held,))
    (device,) = held_claim("metax.hami.io", found).devices
    assert device.mark > 0
