"""The publisher on the embedded cluster: written, restored, retried, reported."""

import asyncio
import contextlib
import logging

import pytest
from msgspec.structs import replace

from hami_dra.api.kinds import NODE, RESOURCE_SLICE
from hami_dra.driver.plan import Plan, plan
from hami_dra.driver.publisher import NotPublished, PoolKey, Publisher
from hami_dra.driver.slices import fenced, pool_of, slice_body, slice_name
from hami_dra.driver.workqueue import WorkQueue
from hami_dra.kube.protocol import AlreadyExists, Conflict, Forbidden, Invalid, Unavailable
from tests.support.steered_cluster import SteeredCluster

DRIVER = "d.example.com"
KEY = PoolKey(DRIVER, "n1")


def pool(count, **attributes):
    devices = [{"name": f"d{n}", "attributes": {k: {"int": v} for k, v in attributes.items()}} for n in range(count)]
    return pool_of(DRIVER, "n1", devices)


async def no_pause(_seconds):
    await asyncio.sleep(0)


def publisher(cluster, owns=lambda item: item.spec.driver == DRIVER):
    return Publisher(cluster, owns=owns, sleep=no_pause)


async def eventually(condition):
    for _ in range(20_000):
        if await condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


@contextlib.asynccontextmanager
async def running(thing):
    task = asyncio.create_task(thing.run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def slices(cluster):
    return (await cluster.list(RESOURCE_SLICE)).items


async def offered(cluster):
    return sorted(device.name for item in await slices(cluster) for device in item.spec.devices)


# --- once ------------------------------------------------------------------------------------------------------------


async def test_a_pool_is_written_and_then_left_alone():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(200))
    await it.sync_once()
    assert [len(item.spec.devices) for item in await slices(cluster)] == [128, 72]
    assert {(item.spec.pool.generation, item.spec.pool.resource_slice_count) for item in await slices(cluster)} == {
        (1, 2)
    }
    writes = cluster.requests["create resourceslices"]
    await it.sync_once()
    assert cluster.requests["create resourceslices"] == writes
    assert not cluster.requests["patch resourceslices"]


async def test_another_publisher_takes_over_without_a_write():
    cluster = SteeredCluster()
    for _ in range(2):
        it = publisher(cluster)
        it.want(pool(3))
        await it.sync_once()
    assert cluster.requests["create resourceslices"] == 1
    assert not cluster.requests["patch resourceslices"]


async def test_one_changed_slice_keeps_the_generation_and_two_raise_it():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(3))
    await it.sync_once()
    it.want(pool(3, version=2))
    await it.sync_once()
    assert [item.spec.pool.generation for item in await slices(cluster)] == [1]
    it.want(pool(200, version=2))
    await it.sync_once()
    it.want(pool(200, version=3))
    await it.sync_once()
    assert [item.spec.pool.generation for item in await slices(cluster)] == [3, 3]


async def test_scale_down_deletes_slices_and_an_empty_pool_is_one_empty_slice():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(300))
    await it.sync_once()
    it.want(pool(0))
    await it.sync_once()
    (item,) = await slices(cluster)
    assert item.spec.devices == ()
    assert item.spec.pool.resource_slice_count == 1


async def test_dropping_a_pool_deletes_only_what_is_ours():
    cluster = SteeredCluster()
    it = publisher(cluster, owns=lambda item: item.spec.driver == DRIVER)
    foreign = pool_of("other.example.com", "n1", [{"name": "x"}])
    await cluster.create(RESOURCE_SLICE, slice_body(foreign, 0, 1))
    it.want(pool(3))
    await it.sync_once()
    it.drop(KEY)
    await it.sync_once()
    assert [item.spec.driver for item in await slices(cluster)] == ["other.example.com"]


async def test_slices_under_other_names_are_replaced():
    cluster = SteeredCluster()
    body = slice_body(pool(2), 0, 8)
    body["metadata"]["name"] = "made-by-an-older-driver"
    await cluster.create(RESOURCE_SLICE, body)
    it = publisher(cluster)
    it.want(pool(3))
    await it.sync_once()
    (item,) = await slices(cluster)
    assert item.metadata.name == slice_name(pool(3), 0)
    assert item.spec.pool.generation == 9


async def test_fields_of_others_survive():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(1))
    await it.sync_once()
    name = slice_name(pool(1), 0)
    await cluster.patch(
        RESOURCE_SLICE, name, {"metadata": {"annotations": {"a": "b"}, "finalizers": ["x.example.com/y"]}}
    )
    it.want(pool(1, version=2))
    await it.sync_once()
    (item,) = await slices(cluster)
    assert item.metadata.annotations == {"a": "b"}
    assert item.metadata.finalizers == ("x.example.com/y",)
    assert item.spec.devices[0].attributes["version"].int_ == 2


async def test_a_node_that_was_made_again_owns_its_slices_again():
    cluster = SteeredCluster()
    it = publisher(cluster)
    first = await cluster.create(NODE, {"metadata": {"name": "n1"}})
    it.want(replace(pool(1), node_uid=first.metadata.uid))
    await it.sync_once()
    await cluster.delete(NODE, "n1")
    assert not await slices(cluster)  # garbage-collected with its owner
    second = await cluster.create(NODE, {"metadata": {"name": "n1"}})
    it.want(replace(pool(1), node_uid=second.metadata.uid))
    await it.sync_once()
    (item,) = await slices(cluster)
    assert [owner.uid for owner in item.metadata.owner_references] == [second.metadata.uid]


async def test_the_time_of_a_taint_stays():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(fenced(pool(2), fence=True))
    await it.sync_once()
    (item,) = await slices(cluster)
    body = await cluster.get_raw(RESOURCE_SLICE, item.metadata.name)
    for device in body["spec"]["devices"]:
        device["taints"][0]["timeAdded"] = "2026-01-02T03:04:05Z"  # as the server does by default
    await cluster.patch(RESOURCE_SLICE, item.metadata.name, {"spec": {"devices": body["spec"]["devices"]}})
    await it.sync_once()
    assert not [label for label in cluster.requests if label.startswith("patch") and cluster.requests[label] > 1]
    it.want(fenced(pool(3, version=1), fence=True))
    await it.sync_once()
    (item,) = await slices(cluster)
    assert [device.taints[0].time_added for device in item.spec.devices] == ["2026-01-02T03:04:05Z"] * 2 + [None]


# --- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "verb"),
    [(Conflict("changed"), "patch"), (AlreadyExists("there"), "create"), (Conflict("changed"), "delete")],
)
async def test_a_conflict_means_read_again_and_go_on(error, verb):
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(200))
    await it.sync_once()
    cluster.fail_next(error, verb=verb, kind=RESOURCE_SLICE, times=2)
    it.want({"patch": pool(200, version=2), "create": pool(300), "delete": pool(1)}[verb])
    await it.sync_once()
    assert plan(it.wanted[KEY], await slices(cluster)) == Plan((), (), ())


async def test_a_create_without_an_answer_makes_no_second_slice():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(3))
    cluster.fail_next(Unavailable("timed out"), verb="create", applied=True)
    with pytest.raises(NotPublished, match=r"pool d.example.com/n1: timed out"):
        await it.sync_once()
    await it.sync_once()
    assert len(await slices(cluster)) == 1


async def test_somebody_who_writes_between_our_read_and_our_write():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(2))
    await it.sync_once()
    name = slice_name(pool(2), 0)
    interfered = []

    async def interfere(request):
        if request.verb == "patch" and request.name == name and not interfered:
            interfered.append(True)
            await cluster.patch(RESOURCE_SLICE, name, {"spec": {"devices": [{"name": "intruder"}]}})

    cluster.hooks.append(interfere)
    it.want(pool(2, version=2))
    await it.sync_once()
    assert await offered(cluster) == ["d0", "d1"]


async def test_endless_conflicts_are_reported_and_others_are_still_written():
    cluster = SteeredCluster()
    it = publisher(cluster)
    other = pool_of(DRIVER, "n2", [{"name": "x"}])
    cluster.fail_next(Conflict("changed"), verb="create", name=slice_name(pool(1), 0), times=99)
    it.want(pool(1))
    it.want(other)
    with pytest.raises(NotPublished, match=r"pool d.example.com/n1: changed"):
        await it.sync_once()
    assert await offered(cluster) == ["x"]


async def test_a_refused_slice_is_reported_and_not_sent_again_until_it_changes():
    cluster = SteeredCluster()
    it = publisher(cluster)
    cluster.fail_next(Invalid("spec.devices: Too many"), verb="create", times=1)
    async with running(it):
        it.want(pool(1))
        await eventually(lambda: _true(KEY in it.problems))
        assert it.problems[KEY] == "spec.devices: Too many"
        for _ in range(100):
            await asyncio.sleep(0)
        assert cluster.requests["create resourceslices"] == 1
        it.want(pool(2))
        await eventually(lambda: _offers(cluster, ["d0", "d1"]))
    assert not it.problems


async def test_a_refusal_is_not_forgotten_when_another_pool_has_to_be_read_again():
    cluster = SteeredCluster()
    it = publisher(cluster)
    it.want(pool(1))
    it.want(pool_of(DRIVER, "n2", [{"name": "x"}]))
    cluster.fail_next(Invalid("spec.devices: Too many"), verb="create", name=slice_name(pool(1), 0))
    cluster.fail_next(
        AlreadyExists("there"), verb="create", name=slice_name(it.wanted[PoolKey(DRIVER, "n2")], 0), times=2
    )
    with pytest.raises(NotPublished, match=r"^pool d.example.com/n1: spec.devices: Too many$"):
        await it.sync_once()
    assert await offered(cluster) == ["x"]


async def test_a_missing_right_is_named():
    cluster = SteeredCluster()
    it = publisher(cluster)
    cluster.fail_next(Forbidden("resourceslices is forbidden: cannot create"), verb="create")
    it.want(pool(1))
    with pytest.raises(NotPublished, match="cannot create"):
        await it.sync_once()


async def test_a_list_that_fails_is_named():
    cluster = SteeredCluster()
    cluster.fail_next(Unavailable("no route"), verb="list")
    with pytest.raises(NotPublished, match="no route"):
        await publisher(cluster).sync_once()


async def test_fields_that_the_server_drops_are_reported_once_and_not_fought_over(caplog):
    cluster = SteeredCluster()

    async def drop_policies(admission):
        for device in admission.object["spec"]["devices"]:
            for capacity in device["capacity"].values():
                capacity.pop("requestPolicy", None)
        return admission.object

    cluster.admission.append(drop_policies)
    it = publisher(cluster)
    device = {"name": "a", "capacity": {"memory": {"value": "8", "requestPolicy": {"default": "1"}}}}
    shared = pool_of(DRIVER, "n1", [device | {"allowMultipleAllocations": True}])
    it.want(shared)
    with caplog.at_level(logging.WARNING):
        await it.sync_once()
        await it.sync_once()
    assert [record.message for record in caplog.records] == [
        f"pool d.example.com/n1: the API server dropped fields of {slice_name(shared, 0)} (a.capacity): is a feature gate off?"
    ]
    assert not cluster.requests["patch resourceslices"]
    it.want(pool_of(DRIVER, "n1", [device | {"name": "b", "allowMultipleAllocations": True}]))
    await it.sync_once()
    assert await offered(cluster) == ["b"]


# --- running ---------------------------------------------------------------------------------------------------------


async def _true(value):
    return value


async def _offers(cluster, names):
    return await offered(cluster) == names


async def test_deleted_slices_come_back_and_changed_ones_are_put_right():
    cluster = SteeredCluster()
    it = publisher(cluster)
    name = slice_name(pool(2), 0)
    async with running(it):
        it.want(pool(2))
        await eventually(lambda: _offers(cluster, ["d0", "d1"]))
        await cluster.delete(RESOURCE_SLICE, name)  # as kubelet does when it starts
        await eventually(lambda: _offers(cluster, ["d0", "d1"]))
        await cluster.patch(RESOURCE_SLICE, name, {"spec": {"devices": []}})
        await eventually(lambda: _offers(cluster, ["d0", "d1"]))
        it.want(pool(3))
        await eventually(lambda: _offers(cluster, ["d0", "d1", "d2"]))
        it.drop(KEY)
        await eventually(lambda: _offers(cluster, []))


async def test_an_outage_of_the_server_is_waited_out():
    cluster = SteeredCluster()
    it = publisher(cluster)
    async with running(it):
        it.want(pool(1))
        await eventually(lambda: _offers(cluster, ["d0"]))
        cluster.fail_next(Unavailable("down"), times=5)
        cluster.close_watches()
        it.want(pool(2))
        await eventually(lambda: _offers(cluster, ["d0", "d1"]))


async def test_slices_that_vanished_while_the_watch_was_away_come_back():
    cluster = SteeredCluster()
    it = publisher(cluster)
    async with running(it):
        it.want(pool(1))
        await eventually(lambda: _offers(cluster, ["d0"]))
        cluster.pause_watches()
        await cluster.delete(RESOURCE_SLICE, slice_name(pool(1), 0))
        cluster.forget_history()
        cluster.close_watches()
        cluster.resume_watches()
        await eventually(lambda: _offers(cluster, ["d0"]))


# --- the queue -------------------------------------------------------------------------------------------------------


async def test_a_key_is_worked_on_by_one_worker_at_a_time_and_never_forgotten():
    busy, seen, release = set(), [], asyncio.Event()

    async def work(key):
        assert key not in busy
        busy.add(key)
        seen.append(key)
        await release.wait()
        busy.discard(key)

    queue = WorkQueue(work, workers=3)
    async with running(queue):
        for key in ("a", "a", "b"):
            queue.add(key)
        await eventually(lambda: _true(len(seen) == 2))
        for key in ("a", "a", "b"):
            queue.add(key)  # while in work: once more afterwards
        release.set()
        await eventually(lambda: _true(len(seen) == 4))
    assert sorted(seen) == ["a", "a", "b", "b"]


async def test_failures_of_the_cluster_and_bugs_are_retried_with_growing_pauses():
    pauses, calls, counted = [], [], []

    async def pause(seconds):
        pauses.append(seconds)

    async def work(key):
        calls.append(key)
        if key == "bug" and calls.count("bug") < 3:
            raise RuntimeError("a bug")
        if len(calls) < 6:
            raise Unavailable("down")

    queue = WorkQueue(work, sleep=pause, count=counted.append)
    async with running(queue):
        queue.add("a")
        await eventually(lambda: _true(len(calls) == 6))
        assert len(pauses) == 5
        assert pauses[-1] > pauses[0]
        queue.add("bug")
        await eventually(lambda: _true(calls.count("bug") == 3))
    assert counted == ["writes", "writes"]
