"""What cannot be read is named once, counted and told to its author; controllers, their loops and uninstall go on (C1, M2)."""

import asyncio
import json
import logging

import pytest

from controller.inventory.inventory import Inventory
from controller.reconcile.repair.deallocate import Deallocator
from controller.reconcile.repair.external_allocations import ExternalAllocationWatch
from controller.reconcile.repair.uninstall import LeftBehind, Plan, Uninstaller
from controller.reconcile.runtime.events import Events
from hami_dra.api import kinds, names
from hami_dra.api.allocator import with_allocator
from hami_dra.driver.node.claims import HeldClaims
from hami_dra.kube.protocol import Forbidden
from tests.support.harness import DRIVER, SPACE, claim, play, pod, template
from tests.support.steered_cluster import SteeredCluster

DEEP = json.loads("[" * 60 + "]" * 60)


def deep_claim(name):
    """A claim whose parameters nest deeper than anybody reads."""
    body = claim(name)
    body["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": {"a": DEEP}}}]
    return body


def odd_claim(name, device="gpu-0", node="n0"):
    """As a newer API might write it; allocated by us."""
    results = [{"request": "card", "driver": DRIVER, "pool": node, "device": device}]
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [pinned]}}
    allocation = with_allocator(allocation, "hami-dra")
    return {
        "metadata": {
            "name": name,
            "namespace": SPACE,
            "finalizers": [names.DELETE_PROTECTION],
        },
        "spec": {"devices": {"requests": {"newer": "form"}}},
        "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]},
    }


def odd_pod(name, **spec):
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": {"containers": {"newer": "form"}, **spec}}


def lines(caplog):
    return [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]


async def reported(harness, name, reason):
    return [each["note"] for each in await harness.events(reason) if each["regarding"]["name"] == name]


def test_an_event_a_metric_and_one_log_line_name_what_cannot_be_read(caplog):
    async def story(harness):
        harness.cluster.put_raw(kinds.POD, odd_pod("odd"))
        await harness.add(kinds.RESOURCE_CLAIM, deep_claim("deep"))
        first = harness.start()
        await harness.sleep(5)
        assert harness.metric("hami_dra_unreadable_objects", resource="pods") == 1
        assert harness.metric("hami_dra_unreadable_objects", resource="resourceclaims") == 1
        said = lines(caplog)
        assert {line.partition(" cannot")[0] for line in said} == {f"Pod {SPACE}/odd", f"ResourceClaim {SPACE}/deep"}
        await harness.controller.informers.relist_claims()
        assert lines(caplog) == said
        await harness.add(kinds.RESOURCE_CLAIM, claim("good"))
        await harness.add(kinds.POD, pod("asks", claims=["deep"]), pod("honest", claims=["good"]))
        await harness.bound("honest")
        [note] = await reported(harness, "deep", "Unreadable")
        assert "spec.devices.config[0].opaque.parameters: nested more than 50 levels deep" in note
        [note] = await reported(harness, "odd", "Unreadable")
        assert "hami-dra cannot read this Pod" in note
        await harness.cluster.delete(kinds.POD, "odd", namespace=SPACE)
        await harness.sleep(5)
        assert harness.metric("hami_dra_unreadable_objects", resource="pods") == 0
        await harness.stop(first)

    with caplog.at_level(logging.WARNING):
        play(story, controller=False)


def test_devices_of_a_claim_that_cannot_be_read_are_not_given_away():
    async def story(harness):
        for number in range(2):
            harness.cluster.put_raw(kinds.RESOURCE_CLAIM, odd_claim(f"odd-{number}", f"gpu-{number}"))
        await harness.add(kinds.RESOURCE_CLAIM, claim("good"))
        await harness.add(kinds.POD, pod("honest", claims=["good"]))
        await harness.sleep(30)
        assert (await harness.claim("good")).status.allocation is None

    play(story, nodes=1)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (Inventory, "pod_changed"),
        (Inventory, "claim_changed"),
        (Deallocator, "pod_changed"),
        (Deallocator, "_judge"),
        (Deallocator, "_take_back"),
        (ExternalAllocationWatch, "claim_changed"),
        (ExternalAllocationWatch, "_settle"),
        (Events, "_send"),
    ],
)
def test_a_failure_over_one_object_leaves_every_loop_running(monkeypatch, owner, method):
    """Whatever fails for an object named evil: the honest pod is placed, before and after."""
    whole = getattr(owner, method)

    def failing(self, *args, **kwargs):
        if "evil" in repr(args):
            raise RecursionError("nobody thought of this")
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, failing)

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await harness.add(kinds.RESOURCE_CLAIM, claim("evil"))
        await harness.add(kinds.POD, pod("evil", claims=["evil"]), pod("before", templates=["small"]))
        await harness.bound("before")
        await harness.add(kinds.POD, pod("after", templates=["small"]))
        await harness.bound("after")
        assert not any(task.done() for task in harness.controllers)

    play(story)


# --- uninstall -------------------------------------------------------------------------------------------------------


async def uninstall(harness):
    said = []
    try:
        await Uninstaller(harness.cluster, Plan(), harness.clock, said.append).run()
    except LeftBehind as error:
        return said, "\n".join(error.args)
    return said, ""


def test_uninstall_treats_what_it_cannot_read_by_its_metadata_and_names_it():
    async def story(harness):
        gates = [{"name": names.GATE}, {"name": "others"}]
        harness.cluster.put_raw(kinds.POD, odd_pod("odd", schedulingGates=gates))
        harness.cluster.put_raw(kinds.RESOURCE_CLAIM, odd_claim("odd"))
        await harness.add(kinds.RESOURCE_CLAIM, deep_claim("deep"))
        said, left = await uninstall(harness)
        assert left.count("\n") <= 1
        assert any("could not be read, and was treated by its metadata: Pod default/odd" in line for line in said)

    play(story, controller=False)


def test_nothing_is_deleted_while_something_cannot_be_listed():
    async def story(harness):
        await harness.add(kinds.MUTATING_POLICY, {"metadata": {"name": names.GATE_POLICY}})
        harness.cluster.fail_next(Forbidden("no right"), verb="list", kind=kinds.RESOURCE_CLAIM, times=100)
        with pytest.raises(Forbidden):
            await Uninstaller(harness.cluster, Plan(), harness.clock, print).run()
        assert len((await harness.cluster.list(kinds.MUTATING_POLICY)).items) == 1

    play(story, controller=False)


def test_one_object_that_cannot_be_written_stays_and_is_told_at_the_end_everything_else_goes():
    async def story(harness):
        await harness.add(kinds.VALIDATING_POLICY, {"metadata": {"name": names.FENCE_POLICY}})
        mark = {"annotations": {names.QUOTA_USED: "{}"}, "namespace": SPACE}
        quotas = [{"metadata": {"name": name, **mark}} for name in ("one", "stuck", "two")]
        await harness.add(kinds.RESOURCE_QUOTA, *quotas)

        async def refuse(request):
            if request.label == "patch resourcequotas" and request.name == "stuck":
                raise Forbidden("a policy says no")

        harness.cluster.hooks.append(refuse)
        _, left = await uninstall(harness)
        assert left == f"annotation {names.QUOTA_USED} of ResourceQuota {SPACE}/stuck: a policy says no"
        quotas = (await harness.cluster.list(kinds.RESOURCE_QUOTA)).items
        assert [each.metadata.name for each in quotas if each.metadata.annotations] == ["stuck"]
        assert (await harness.cluster.list(kinds.VALIDATING_POLICY)).items == ()

    play(story, controller=False)


# --- the driver ------------------------------------------------------------------------------------------------------


async def test_a_driver_counts_the_claims_on_its_node_that_it_cannot_read_and_sees_those_after_them():
    cluster = SteeredCluster()
    cluster.put_raw(kinds.RESOURCE_CLAIM, odd_claim("odd"))
    synced = asyncio.Event()
    held = HeldClaims(cluster, "n0", [DRIVER], synced.set)
    running = asyncio.create_task(held.reflector.run())
    await synced.wait()
    await cluster.create(kinds.RESOURCE_CLAIM, deep_claim("deep"))
    status = {"status": {"allocation": odd_claim("deep", "gpu-1")["status"]["allocation"]}}
    await cluster.patch(kinds.RESOURCE_CLAIM, "deep", status, namespace=SPACE, subresource="status")
    for _ in range(100):
        await asyncio.sleep(0)
    assert sorted(claim.metadata.name for claim in held.held) == ["deep", "odd"]
    running.cancel()
