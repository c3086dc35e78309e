"""The fleet on the embedded cluster: nodes and slices come, stay and go with the file."""

import asyncio
import contextlib

import pytest

from hami_dra.api.config import FleetFile
from hami_dra.api.errors import ConfigError
from hami_dra.api.kinds import DEVICE_TAINT_RULE, NODE, RESOURCE_SLICE
from hami_dra.driver.fleet.run import Fleet
from hami_dra.driver.publisher import NotPublished
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_body
from hami_dra.kube.protocol import ServerVersion, Unavailable
from tests.support.steered_cluster import SteeredCluster

T4 = {"machine": "g4dn.12xlarge", "name": "t4-{index}"}
A10G = {"machine": "g5.12xlarge", "name": "a10g-{index}"}


def file(*nodes, **fields):
    return FleetFile.model_validate({"nodes": nodes, **fields})


async def no_pause(_seconds):
    await asyncio.sleep(0)


async def nodes(cluster):
    return [node.metadata.name for node in (await cluster.list(NODE)).items]


async def pools(cluster):
    return [(item.spec.driver, item.spec.node_name) for item in (await cluster.list(RESOURCE_SLICE)).items]


async def tainted(cluster):
    return {bool(device.taints) for item in (await cluster.list(RESOURCE_SLICE)).items for device in item.spec.devices}


async def eventually(check, *arguments, expected=True):
    for _ in range(20_000):
        if await check(*arguments) == expected:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"still {await check(*arguments)}, not {expected}")


@contextlib.asynccontextmanager
async def running(fleet):
    task = asyncio.create_task(fleet.run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- once ------------------------------------------------------------------------------------------------------------


async def test_nodes_are_ready_and_own_their_slices():
    cluster = SteeredCluster()
    await Fleet(cluster, file(T4 | {"count": 2}, A10G)).sync_once()
    listed = (await cluster.list(NODE)).items
    assert [node.metadata.name for node in listed] == ["a10g-0", "t4-0", "t4-1"]
    assert all(node.status.conditions[0].status == "True" for node in listed)
    assert all(node.status.allocatable["cpu"] == "48" == node.status.capacity["cpu"] for node in listed)
    uids = {node.metadata.name: node.metadata.uid for node in listed}
    for item in (await cluster.list(RESOURCE_SLICE)).items:
        (owner,) = item.metadata.owner_references
        assert (owner.kind, owner.uid) == ("Node", uids[item.spec.node_name])
        assert item.metadata.labels == {"hami.io/fleet": "fleet"}


async def test_a_second_look_writes_nothing():
    cluster = SteeredCluster()
    fleet = Fleet(cluster, file(T4 | {"count": 3}))
    await fleet.sync_once()
    before = cluster.requests.copy()
    await fleet.sync_once()
    written = {label for label in cluster.requests - before if not label.startswith(("list", "watch"))}
    assert not written


async def test_the_fleet_shrinks_with_its_file_also_across_restarts():
    cluster = SteeredCluster()
    await Fleet(cluster, file(T4 | {"count": 3}, A10G)).sync_once()
    await Fleet(cluster, file(T4 | {"count": 1})).sync_once()
    assert await nodes(cluster) == ["t4-0"]
    assert await pools(cluster) == [("nvidia.hami.io", "t4-0")]
    await Fleet(cluster, file()).sync_once()
    assert not await nodes(cluster)
    assert not await pools(cluster)


async def test_nodes_and_slices_of_others_are_left_alone():
    cluster = SteeredCluster()
    await cluster.create(NODE, {"metadata": {"name": "real"}})
    (real,) = machine_pools(machine("dgx-h100", "real"))
    await cluster.create(RESOURCE_SLICE, slice_body(real, 0, 3))
    other = Fleet(cluster, file(A10G, name="other"))
    await other.sync_once()
    fleet = Fleet(cluster, file(T4))
    await fleet.sync_once()
    fleet.update(file())
    await fleet.sync_once()
    assert await nodes(cluster) == ["a10g-0", "real"]
    assert sorted(await pools(cluster)) == [("nvidia.hami.io", "a10g-0"), ("nvidia.hami.io", "real")]


async def test_a_node_that_is_somebody_elses_is_reported_and_not_touched():
    cluster = SteeredCluster()
    await cluster.create(NODE, {"metadata": {"name": "t4-0", "labels": {"mine": "yes"}}})
    with pytest.raises(NotPublished, match="node t4-0: it exists and does not belong to this fleet"):
        await Fleet(cluster, file(T4 | {"count": 2})).sync_once()
    assert (await cluster.get(NODE, "t4-0")).metadata.labels == {"mine": "yes"}
    assert await pools(cluster) == [("nvidia.hami.io", "t4-1")]


async def test_publishing_on_nodes_that_somebody_else_creates():
    cluster = SteeredCluster()
    await cluster.create(NODE, {"metadata": {"name": "t4-0"}})
    fleet = Fleet(cluster, file(T4 | {"count": 2}, createNodes=False))
    await fleet.sync_once()
    assert await pools(cluster) == [("nvidia.hami.io", "t4-0")]
    assert (await cluster.get(NODE, "t4-0")).metadata.labels == {}
    fleet.update(file(createNodes=False))
    await fleet.sync_once()
    assert await nodes(cluster) == ["t4-0"]
    assert not await pools(cluster)


async def test_a_failure_is_named_and_the_others_are_written():
    cluster = SteeredCluster()
    cluster.fail_next(Unavailable("no space left"), verb="create", kind=NODE, name="")
    with pytest.raises(NotPublished, match=r"node t4-0: no space left"):
        await Fleet(cluster, file(T4 | {"count": 2})).sync_once()
    assert await nodes(cluster) == ["t4-1"]


async def test_a_node_whose_status_could_not_be_written_becomes_ready_later():
    cluster = SteeredCluster()
    cluster.fail_next(Unavailable("timed out"), verb="patch", kind=NODE, subresource="status")
    fleet = Fleet(cluster, file(T4))
    with pytest.raises(NotPublished, match="timed out"):
        await fleet.sync_once()
    await fleet.sync_once()
    node = await cluster.get(NODE, "t4-0")
    assert node.status.conditions[0].type == "Ready"
    assert node.status.allocatable["memory"] == "192Gi"


async def test_what_was_done_to_a_node_on_purpose_stays():
    cluster = SteeredCluster()
    fleet = Fleet(cluster, file(T4))
    await fleet.sync_once()
    await cluster.patch(NODE, "t4-0", {"spec": {"unschedulable": True}})
    status = {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "False"}]}
    await cluster.patch(NODE, "t4-0", {"status": status}, subresource="status")
    await fleet.sync_once()
    node = await cluster.get(NODE, "t4-0")
    assert node.spec.unschedulable
    assert node.status.allocatable["cpu"] == "1"
    assert node.status.conditions[0].status == "False"


async def test_a_changed_group_changes_its_nodes():
    cluster = SteeredCluster()
    fleet = Fleet(cluster, file(T4))
    await fleet.sync_once()
    fleet.update(file(A10G | {"name": "t4-{index}", "labels": {"a": "b"}, "publishAs": "gpu.nvidia.com"}))
    await fleet.sync_once()
    node = await cluster.get(NODE, "t4-0")
    assert node.metadata.labels["a"] == "b"
    assert node.metadata.labels["node.kubernetes.io/instance-type"] == "g5.12xlarge"
    assert await pools(cluster) == [("gpu.nvidia.com", "t4-0")]


async def test_a_bad_new_file_changes_nothing():
    fleet = Fleet(SteeredCluster(), file(T4))
    with pytest.raises(ConfigError, match="no machine"):
        fleet.update(file({"machine": "nonsense"}))
    with pytest.raises(ConfigError, match="keep the name"):
        fleet.update(file(T4, name="another"))
    await fleet.sync_once()
    assert not fleet.problems


# --- fence -----------------------------------------------------------------------------------------------------------


async def test_on_1_36_the_fence_is_in_the_slices():
    cluster = SteeredCluster(ServerVersion(1, 36, "v1.36.4"))
    fleet = Fleet(cluster, file(T4))
    await fleet.sync_once()
    assert await tainted(cluster) == {True}
    await Fleet(cluster, file(T4), fence="off").sync_once()
    assert await tainted(cluster) == {False}


async def test_after_an_upgrade_the_taint_goes_once_the_rule_is_in_force(monkeypatch):
    monkeypatch.setattr("hami_dra.driver.fence.QUIET", 0.0)
    cluster = SteeredCluster()
    before = Fleet(cluster, file(T4), fence="on")
    await before.sync_once()
    fleet = Fleet(cluster, file(T4), sleep=no_pause)
    async with running(fleet):
        for _ in range(200):
            await asyncio.sleep(0)
        assert await tainted(cluster) == {True}
        taint = {"key": "hami.io/controller-allocates", "effect": "NoSchedule"}
        rule = {"taint": taint, "deviceSelector": {"driver": "nvidia.hami.io"}}
        await cluster.create(DEVICE_TAINT_RULE, {"metadata": {"name": "fence"}, "spec": rule})
        await eventually(tainted, cluster, expected={False})


# --- running ---------------------------------------------------------------------------------------------------------


async def test_what_vanishes_comes_back():
    cluster = SteeredCluster()
    everything = [("nvidia.hami.io", "t4-0"), ("nvidia.hami.io", "t4-1")]
    async with running(Fleet(cluster, file(T4 | {"count": 2}), sleep=no_pause)):
        await eventually(pools, cluster, expected=everything)
        first = (await cluster.get(NODE, "t4-0")).metadata.uid
        await cluster.delete(NODE, "t4-0")
        await eventually(nodes, cluster, expected=["t4-0", "t4-1"])
        await eventually(pools, cluster, expected=everything)
        second = (await cluster.get(NODE, "t4-0")).metadata.uid
        assert first != second

        async def owners():
            return {item.metadata.owner_references[0].uid for item in (await cluster.list(RESOURCE_SLICE)).items}

        await eventually(owners, expected={second, (await cluster.get(NODE, "t4-1")).metadata.uid})


async def test_a_restart_takes_nothing_away():
    cluster = SteeredCluster()
    await Fleet(cluster, file(T4 | {"count": 5})).sync_once()
    async with running(Fleet(cluster, file(T4 | {"count": 5}), sleep=no_pause)):
        for _ in range(500):
            await asyncio.sleep(0)
    assert not cluster.requests["delete resourceslices"]
    assert cluster.requests["create resourceslices"] == 5


async def test_it_follows_its_file_while_it_runs():
    cluster = SteeredCluster()
    fleet = Fleet(cluster, file(T4 | {"count": 3}), sleep=no_pause)
    async with running(fleet):
        await eventually(nodes, cluster, expected=["t4-0", "t4-1", "t4-2"])
        fleet.update(file(A10G))
        await eventually(nodes, cluster, expected=["a10g-0"])
        await eventually(pools, cluster, expected=[("nvidia.hami.io", "a10g-0")])


async def test_a_node_that_comes_later_gets_its_slices():
    cluster = SteeredCluster()
    async with running(Fleet(cluster, file(T4, createNodes=False), sleep=no_pause)):
        for _ in range(100):
            await asyncio.sleep(0)
        assert not await pools(cluster)
        await cluster.create(NODE, {"metadata": {"name": "t4-0"}})
        await eventually(pools, cluster, expected=[("nvidia.hami.io", "t4-0")])


async def test_it_starts_while_the_server_is_still_down():
    cluster = SteeredCluster()
    for verb in ("list", "create"):
        cluster.fail_next(Unavailable("connection refused"), verb=verb, times=4)

    async def published():
        return cluster.requests["create resourceslices"] > 0 and await pools(cluster)

    async with running(Fleet(cluster, file(T4), sleep=no_pause)):
        await eventually(published, expected=[("nvidia.hami.io", "t4-0")])
