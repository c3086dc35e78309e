"""kubelet's calls on a cluster in memory: claims and pods are read, answers come in time, many at once, and statuses follow."""

import asyncio
import threading
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest

from hami_dra.api.kinds import POD, RESOURCE_CLAIM
from hami_dra.driver.kubelet.protocol import ClaimRef
from hami_dra.driver.prepare.claim_status import ClaimStatusWriter
from hami_dra.driver.prepare.preparation import NodePreparation
from hami_dra.kube.protocol import Forbidden, Unavailable
from tests.support.preparing import DRIVER, PreparedNode, claim_json, env_of, only, pod_json, result, share
from tests.support.steered_cluster import SteeredCluster
from tests.support.virtual_time import run

SHARE = "00000000-0000-0000-0000-000000000001"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Lab:
    def __init__(self, root):
        self.cluster = SteeredCluster()
        self.node = PreparedNode(root)
        self.writer = ClaimStatusWriter(self.cluster, DRIVER, lambda: NOW)
        self.preparation = NodePreparation(
            self.cluster, self.node.work, node="n1", report=self.writer.add, forget=self.writer.forget
        )

    @asynccontextmanager
    async def running(self):
        tasks = [asyncio.create_task(self.preparation.run()), asyncio.create_task(self.writer.run())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def add(self, name, *results, pods=None, **more):
        """The claim, and a pod that uses it unless `pods` names some that exist."""
        if pods is None:
            pods = [await self.add_pod(f"pod-{name}", claims=(name,))]
        results = [each | ({"shareID": SHARE} if "shareID" in each else {}) for each in results]
        raw = claim_json(name, *results, pods=pods, **more)
        requests = [{"name": each["request"], "exactly": {"deviceClassName": "any"}} for each in results]
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": requests}}}
        made = await self.cluster.create(RESOURCE_CLAIM, body)
        await self.cluster.patch(
            RESOURCE_CLAIM, name, {"status": raw["status"]}, namespace="default", subresource="status"
        )
        return ClaimRef("default", name, made.metadata.uid)

    async def add_pod(self, name, **more):
        raw = pod_json(name, **more)
        del raw["metadata"]["uid"]
        made = await self.cluster.create(POD, raw)
        return {"metadata": {"name": name, "uid": made.metadata.uid}}

    async def status(self, ref):
        for _ in range(200):
            raw = await self.cluster.get_raw(RESOURCE_CLAIM, ref.name, ref.namespace)
            if "devices" in raw["status"]:
                return raw["status"]["devices"]
            await asyncio.sleep(0.01)
        raise AssertionError("no status was written")


@pytest.fixture
async def lab(tmp_path):
    async with Lab(tmp_path).running() as found:
        yield found


async def test_a_claim_is_prepared_for_the_containers_of_its_pod(lab):
    ref = await lab.add("c", share("gpu-0", memory="4Gi"))
    (device,) = (await lab.preparation.prepare([ref]))[ref.uid]
    assert (device.requests, device.pool, device.device, device.share_id) == (("r",), "n1", "gpu-0", SHARE)
    assert device.cdi_ids[0].endswith(only(lab.node.specs())["name"])
    assert env_of(only(lab.node.specs()))["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert await lab.preparation.unprepare([ref]) == {ref.uid: ""}
    assert lab.node.traces() == []


async def test_every_claim_of_a_call_has_an_entry(lab):
    good = await lab.add("good", share("gpu-0"))
    gone = ClaimRef("default", "gone", "uid-gone")
    other = ClaimRef("default", "good", "uid-other")
    answers = await lab.preparation.prepare([gone])
    assert "default/gone does not exist any more" in answers["uid-gone"]
    answers = await lab.preparation.prepare([good, gone])
    assert "default/gone" in answers[good.uid]
    assert "created again under the same name" in (await lab.preparation.prepare([other]))["uid-other"]
    assert set(await lab.preparation.unprepare([good, gone, other])) == {good.uid, "uid-gone", "uid-other"}
    assert lab.node.specs() == {}


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", "x" * 64, "a\n"])
async def test_uids_that_are_none_touch_nothing(lab, uid):
    answers = await lab.preparation.prepare([ClaimRef("default", "c", uid)])
    assert "not a call of kubelet's" in answers[uid]
    assert await lab.preparation.unprepare([ClaimRef("default", "c", uid)]) == {uid: ""}


async def test_pods_that_are_gone_over_or_others_are_not_asked(lab):
    over = await lab.add_pod("over", claims=("c",))
    await lab.cluster.patch(POD, "over", {"status": {"phase": "Failed"}}, namespace="default", subresource="status")
    old = {"metadata": {"name": "here", "uid": "uid-of-the-one-before"}}
    await lab.add_pod("here", claims=("c",))
    gone = {"metadata": {"name": "gone", "uid": "uid-gone"}}
    ref = await lab.add("c", share("gpu-0"), pods=[over, old, gone])
    assert not isinstance((await lab.preparation.prepare([ref]))[ref.uid], str)
    assert lab.preparation.records[ref.uid].views[0].containers == ()


GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}


async def of_group(lab, name, group="g", node="n1", **more):
    """Adds a pod of a PodGroup."""
    raw = pod_json(name, **more)
    raw["spec"] |= {"schedulingGroup": {"podGroupName": group}, "nodeName": node}
    await lab.cluster.create(POD, raw)


async def add_for_group(lab, name, *results):
    ref = await lab.add(name, *results, pods=[], owner="")
    status = {"status": {"reservedFor": [GROUP]}}
    await lab.cluster.patch(RESOURCE_CLAIM, name, status, namespace="default", subresource="status")
    return ref


async def test_a_claim_of_a_pod_group_is_prepared_for_the_containers_of_its_pods_here(lab):
    """B11: a container that asks for request `a` is not given the card of `b`."""
    await of_group(lab, "member", containers={"one": ["c/a"], "two": ["c/b"]})
    await of_group(lab, "elsewhere", node="n2", containers={"both": ["c"]})
    await of_group(lab, "stranger", group="other", containers={"both": ["c"]})
    ref = await add_for_group(lab, "c", share("gpu-0", "a"), share("gpu-1", "b"))
    answers = (await lab.preparation.prepare([ref]))[ref.uid]
    devices = {device["name"]: env_of(device) for spec in lab.node.specs().values() for device in spec["devices"]}
    seen = [devices[answer.cdi_ids[0].partition("=")[2]]["NVIDIA_VISIBLE_DEVICES"] for answer in answers]
    assert seen == ["GPU-0", "GPU-1"]
    assert {view.users for view in lab.preparation.records[ref.uid].views} == {
        (("member", "one"),),
        (("member", "two"),),
    }


@pytest.fixture
def may_not_list(lab, monkeypatch):
    async def forbidden(*_arguments, **_more):
        raise Forbidden("LIST pods: forbidden")

    monkeypatch.setattr(lab.cluster, "list", forbidden)


@pytest.mark.usefixtures("may_not_list")
async def test_where_pods_of_a_group_cannot_be_listed_several_requests_are_refused(lab):
    await of_group(lab, "member", containers={"one": ["c/a"], "two": ["c/b"]})
    ref = await add_for_group(lab, "c", share("gpu-0", "a"), share("gpu-1", "b"))
    why = (await lab.preparation.prepare([ref]))[ref.uid]
    assert "default/c: it is reserved for PodGroup default/g (LIST pods: forbidden)" in why
    assert "manifests/optional/pod-groups.yaml" in why
    one, two = [await add_for_group(lab, name, share(f"gpu-{number}")) for number, name in enumerate(("d", "e"))]
    answers = await lab.preparation.prepare([one, two])
    assert all("of its 2 requests here" in why for why in answers.values())
    assert lab.node.traces() == []
    assert not isinstance((await lab.preparation.prepare([one]))[one.uid], str)


@pytest.mark.usefixtures("may_not_list")
async def test_a_pod_that_is_known_by_another_claim_tells_what_its_containers_use(lab):
    pods = [await lab.add_pod("member", containers={"main": ["c/a"], "side": ["own"]}, claims=("c", "own"))]
    of_the_group = await add_for_group(lab, "c", share("gpu-0", "a"), share("gpu-1", "b"))
    own = await lab.add("own", share("gpu-1", memory="1Gi"), pods=pods)
    answers = await lab.preparation.prepare([of_the_group, own])
    assert not any(isinstance(answer, str) for answer in answers.values())
    used, unused = lab.preparation.records[of_the_group.uid].views
    assert (used.containers, used.asked) == (("main",), ((of_the_group.uid, "a"),))
    assert unused.containers == ()


async def test_an_api_server_that_is_away_is_named(lab, monkeypatch):
    ref = await lab.add("c", share("gpu-0"))
    real = lab.cluster.get_raw

    async def away(*_arguments, **_more):
        raise Unavailable("GET pod: connection refused")

    monkeypatch.setattr(lab.cluster, "get_raw", away)
    assert (
        "Pod default/pod-c cannot be read: GET pod: connection refused"
        in (await lab.preparation.prepare([ref]))[ref.uid]
    )
    monkeypatch.setattr(lab.cluster, "get_raw", real)

    async def forbidden(*_arguments, **_more):
        raise Forbidden("GET claim: forbidden")

    monkeypatch.setattr(lab.cluster, "get", forbidden)
    assert "give the driver's ServiceAccount permission" in (await lab.preparation.prepare([ref]))[ref.uid]


async def test_many_calls_at_once_share_few_writes(lab):
    refs = [await lab.add(f"c{number}", share(f"gpu-{number % 2}", memory="1Gi", cores="1")) for number in range(16)]
    lab.node.files.steps.clear()
    answers = await asyncio.gather(*(lab.preparation.prepare([ref]) for ref in refs))
    assert all(not isinstance(found, str) for answer in answers for found in answer.values())
    writes = [path for name, path in lab.node.files.steps if name == "rename" and path.endswith("checkpoint.json")]
    assert len(writes) < 16
    gone = await asyncio.gather(*(lab.preparation.unprepare([ref]) for ref in refs))
    assert all(set(answer.values()) == {""} for answer in gone)
    assert lab.node.traces() == []


async def test_a_call_ends_in_time_and_the_next_one_finds_the_work_done(lab):
    ref = await lab.add("c", share("gpu-0"))
    hurry = NodePreparation(lab.cluster, lab.node.work, node="n1", most_seconds=0.05)
    release = threading.Event()
    lab.node.files.make_folder, real = lambda *_arguments: release.wait(20), lab.node.files.make_folder
    lab.node.cdi.mkdir()
    running = asyncio.create_task(hurry.run())
    answers = await hurry.prepare([ref])
    assert "not done after 0.05 s" in answers[ref.uid]
    assert "ResourceClaim default/c" in answers[ref.uid]
    lab.node.files.make_folder = real
    release.set()
    hurry.most_seconds = 30
    assert not isinstance((await hurry.prepare([ref]))[ref.uid], str)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert hurry.records.keys() == {ref.uid}


async def test_a_fault_of_the_driver_itself_is_an_answer_too(lab, monkeypatch):
    ref = await lab.add("c", share("gpu-0"))

    def broken(_jobs):
        raise RuntimeError("a slip")

    with monkeypatch.context() as patched:
        patched.setattr(lab.node.work, "run", broken)
        assert "its log has details" in (await lab.preparation.prepare([ref]))[ref.uid]
        assert "its log has details" in (await lab.preparation.unprepare([ref]))[ref.uid]
    assert not isinstance((await lab.preparation.prepare([ref]))[ref.uid], str)


async def test_start_repairs(lab):
    ref = await lab.add("c", share("gpu-0"))
    await lab.preparation.prepare([ref])
    for path in lab.node.cdi.iterdir():
        path.unlink()
    assert await lab.preparation.start() == []
    assert len(lab.node.specs()) == 1


# --- status ----------------------------------------------------------------------------------------------------------


async def test_what_was_prepared_is_told_in_the_claim(lab):
    ref = await lab.add("c", share("gpu-0", memory="4Gi", cores="30"), result("gpu-2-mig-1g-5gb-0", "part"))
    await lab.preparation.prepare([ref])
    card, part = await lab.status(ref)
    assert (card["driver"], card["pool"], card["device"], card["shareID"]) == (DRIVER, "n1", "gpu-0", SHARE)
    (condition,) = card["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Prepared")
    assert condition["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    [note] = card["data"].pop("notes")
    assert "CUDA shows a program one MIG instance" in note
    assert card["data"] == {"uuid": "GPU-0", "limits": {"memory": "4Gi", "cores": "30", "shares": "1"}}
    assert "shareID" not in part
    assert part["data"]["partition"] == {"uuid": lab.node.instances()[0].uuid, "profile": "1g.5gb", "placement": 0}


async def test_why_it_was_not_is_told_too_and_the_time_is_that_of_the_change(lab):
    first = await lab.add("first", result("gpu-2-mig-1g-5gb-0"))
    await lab.preparation.prepare([first])
    ref = await lab.add("c", result("gpu-2-mig-1g-5gb-0"))
    why = (await lab.preparation.prepare([ref]))[ref.uid]
    (entry,) = await lab.status(ref)
    assert entry["conditions"][0]["status"] == "False"
    assert entry["conditions"][0]["message"] == why
    assert "data" not in entry


async def test_the_same_again_is_not_written_again(lab):
    ref = await lab.add("c", share("gpu-0"))
    await lab.preparation.prepare([ref])
    await lab.status(ref)
    before = await lab.cluster.get(RESOURCE_CLAIM, "c", "default")
    await lab.preparation.prepare([ref])
    await asyncio.sleep(0.05)
    after = await lab.cluster.get(RESOURCE_CLAIM, "c", "default")
    assert before.metadata.resource_version == after.metadata.resource_version


async def test_a_named_claim_that_is_allocated_the_same_again_is_told_again(lab):
    """The API server empties the status when the claim is deallocated between the two pods."""
    part = result("gpu-2-mig-1g-5gb-0")
    ref = await lab.add("c", part)
    await lab.preparation.prepare([ref])
    first = await lab.status(ref)
    await lab.preparation.unprepare([ref])
    emptied = {"status": {"devices": None}}
    await lab.cluster.patch(RESOURCE_CLAIM, "c", emptied, namespace="default", subresource="status")
    assert "devices" not in (await lab.cluster.get_raw(RESOURCE_CLAIM, "c", "default"))["status"]
    await lab.preparation.prepare([ref])
    again = await lab.status(ref)
    assert [each["device"] for each in again] == [each["device"] for each in first]


def test_a_namespace_whose_statuses_hang_delays_nobody_elses():
    """An admission webhook of that namespace that does not answer."""

    async def story():
        cluster = SteeredCluster()

        async def hang(request):
            if request.is_write and request.subresource == "status" and request.namespace == "evil":
                await asyncio.sleep(4)
                raise Unavailable("a webhook does not answer")

        claims = [await stored(cluster, f"evil-{number}", "evil") for number in range(40)]
        honest = await stored(cluster, "honest", "default")
        cluster.hooks.append(hang)
        writer = ClaimStatusWriter(cluster, DRIVER, lambda: NOW)
        writing = asyncio.create_task(writer.run())
        try:
            for claim in claims:
                writer.add({claim.metadata.uid: claim}, {claim.metadata.uid: "no such device"})
            await asyncio.sleep(60)
            writer.add({honest.metadata.uid: honest}, {honest.metadata.uid: "no such device"})
            await asyncio.sleep(1)
            assert (await cluster.get(RESOURCE_CLAIM, "honest", "default")).status.devices
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    run(story())


async def stored(cluster, name, namespace):
    request = {"name": "r", "exactly": {"deviceClassName": "any"}}
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"devices": {"requests": [request]}}}
    await cluster.create(RESOURCE_CLAIM, body)
    held = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "d"}
    status = {"status": {"allocation": {"devices": {"results": [held]}}}}
    return await cluster.patch(RESOURCE_CLAIM, name, status, namespace=namespace, subresource="status")
