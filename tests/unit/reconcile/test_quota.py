"""Quotas in the life of pods: the last share goes to one, the others wait for it; usage is written on the quota."""

import asyncio
import json

import pytest

from controller.decide import decide
from controller.reconcile.repair.uninstall import Plan, Uninstaller
from controller.reconcile.runtime.settings import Mode
from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Conflict, Invalid, Unavailable
from tests.support.harness import SPACE, claim, device_class, pod, template
from tests.support.harness import play as played
from tests.support.mortal import Mortal
from tests.support.quotas import MIB

OURS = "nvidia.hami.io"
MANAGED = {"managed": frozenset({OURS}), "own_drivers": frozenset({OURS})}
QUICK = {"quiet_time": 0.0, "probe": False, "decide": decide, **MANAGED}
GPUMEM = "limits.nvidia.com/gpumem"


def quota(mebibytes, name="q"):
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": {"hard": {GPUMEM: str(mebibytes), "pods": "100"}}}


def play(story, **settings):
    """Two nodes with two NVIDIA cards of 16 GiB each."""

    async def with_class(harness):
        await harness.add(kinds.DEVICE_CLASS, device_class("ours", OURS))
        await story(harness)

    played(with_class, node_options={"driver": OURS}, **settings)


async def used(cluster):
    """MiB that allocated claims hold, from the cluster's own objects."""
    claims = (await cluster.list(kinds.RESOURCE_CLAIM)).items
    allocations = [found.status.allocation for found in claims if found.status.allocation]
    amounts = [result.consumed_capacity["memory"] for each in allocations for result in each.devices.results]
    return sum(int(amount.removesuffix("Gi")) * (1 << 30) // MIB for amount in amounts)


class Watched:
    """A cluster that remembers the most that claims ever held after a write."""

    def __init__(self, inner):
        self._inner = inner
        self.most_used = 0
        self.quota_writes = 0
        self.fail_next = None

    async def patch(self, kind, name, patch, **options):
        if self.fail_next is not None and kind is kinds.RESOURCE_CLAIM and options.get("subresource") == "status":
            error, self.fail_next = self.fail_next, None
            raise error
        self.quota_writes += kind is kinds.RESOURCE_QUOTA
        result = await self._inner.patch(kind, name, patch, **options)
        self.most_used = max(self.most_used, await used(self._inner))
        return result

    def __getattr__(self, name):
        return getattr(self._inner, name)


async def annotation(harness, name="q"):
    found = await harness.cluster.get(kinds.RESOURCE_QUOTA, name, SPACE)
    text = found.metadata.annotations.get(names.QUOTA_USED)
    return None if text is None else json.loads(text)


async def written(harness, expected):
    async def it_is():
        return await annotation(harness) == expected

    await harness.until(it_is, seconds=12)


async def bound_pods(harness):
    return {found.metadata.name for found in await harness.pods() if found.spec.node_name}


def test_two_pods_at_the_same_moment_cannot_both_take_the_last_share():
    async def story(harness):
        watched = Watched(harness.cluster)
        await harness.add(kinds.RESOURCE_QUOTA, quota(6 * 1024))
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("four", device_class="ours"))
        await harness.add(kinds.POD, *(pod(name, templates=["four"], gated=True) for name in ("p", "q")))
        harness.start(through=watched, **QUICK)
        await harness.bound("p")
        await harness.sleep(30)
        assert await bound_pods(harness) == {"p"}
        # an autoscaler could not help it: it keeps the gate
        assert [gate.name for gate in (await harness.pod("q")).spec.scheduling_gates] == [names.GATE]
        notes = {event["note"] for event in await harness.events("FilteringFailed")}
        assert (
            f"no node fits now: needs 4096 MiB of {GPUMEM.removeprefix('limits.')}; "
            f"ResourceQuota {SPACE}/q allows 6144 MiB of {GPUMEM}, of which 4096 are used. "
            f"Run: hami-dra explain q -n {SPACE} [2 nodes ResourceQuotaNotFit]"
        ) in notes
        await harness.delete_pod("p")
        await harness.bound("q", seconds=10)
        assert watched.most_used == 4096
        await harness.check_nothing_leaked()

    play(story, controller=False)


def test_a_quota_that_is_raised_lets_waiting_pods_in():
    async def story(harness):
        await harness.add(kinds.RESOURCE_QUOTA, quota(1024))
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", device_class="ours"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        harness.start(**QUICK)
        await harness.sleep(20)
        assert await bound_pods(harness) == set()
        await harness.cluster.patch(kinds.RESOURCE_QUOTA, "q", {"spec": {"hard": {GPUMEM: "4096"}}}, namespace=SPACE)
        await harness.bound("p", seconds=10)

    play(story, controller=False)


def test_a_quota_that_goes_lets_waiting_pods_in():
    async def story(harness):
        await harness.add(kinds.RESOURCE_QUOTA, quota(1024))
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", device_class="ours"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        harness.start(**QUICK)
        await harness.sleep(20)
        await harness.cluster.delete(kinds.RESOURCE_QUOTA, "q", namespace=SPACE)
        await harness.bound("p", seconds=10)

    play(story, controller=False)


@pytest.mark.parametrize("error", [Invalid("no"), Conflict("too late")], ids=["refused", "conflict"])
def test_a_commit_that_fails_gives_its_share_back(error):
    """`p` is decided first; when its write is refused, `q` need not wait for anything else."""

    async def story(harness):
        watched = Watched(harness.cluster)
        watched.fail_next = error
        await harness.add(kinds.RESOURCE_QUOTA, quota(4096))
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("four", device_class="ours"))
        await harness.add(kinds.POD, *(pod(name, templates=["four"]) for name in ("p", "q")))
        harness.start(through=watched, **QUICK)
        await harness.until(lambda: some_bound(harness), seconds=20)
        first = await bound_pods(harness)
        await harness.sleep(100)
        assert await bound_pods(harness) == first
        await harness.delete_pod(*first)
        await harness.bound(*({"p", "q"} - first), seconds=100)
        assert watched.most_used == 4096

    async def some_bound(harness):
        return bool(await bound_pods(harness))

    play(story, controller=False)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_controller_that_takes_over_counts_what_the_last_one_wrote(at, before):
    async def story(harness):
        watched = Watched(harness.cluster)
        mortal = Mortal(watched, at, before=before)
        await harness.add(kinds.RESOURCE_QUOTA, quota(8192))
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("four", device_class="ours"))
        await harness.add(kinds.POD, *(pod(name, templates=["four"], gated=True) for name in "pqrs"))
        first = harness.start(through=mortal, **QUICK)

        async def dead():
            return mortal.dead.is_set()

        await harness.until(dead)
        await harness.stop(first)
        harness.start(through=watched, **QUICK)
        await harness.sleep(120)
        assert len(await bound_pods(harness)) == 2
        assert watched.most_used == 8192
        await harness.check_nothing_leaked()

    play(story, controller=False)


def test_usage_is_written_on_the_quota_and_not_too_often():
    async def story(harness):
        watched = Watched(harness.cluster)
        await harness.add(kinds.RESOURCE_QUOTA, quota(1 << 20))
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("one", 1, device_class="ours"))
        harness.start(through=watched, **QUICK)
        await written(harness, {GPUMEM: "0"})
        started, writes = harness.clock.monotonic(), watched.quota_writes
        for number in range(12):
            await harness.add(kinds.POD, pod(f"p{number}", templates=["one"]))
            await harness.bound(f"p{number}")
        await written(harness, {GPUMEM: str(12 * 1024)})
        assert watched.quota_writes - writes <= 1 + (harness.clock.monotonic() - started) / 5
        for number in range(12):
            await harness.delete_pod(f"p{number}")
        await written(harness, {GPUMEM: "0"})
        settled = watched.quota_writes
        await harness.sleep(60)
        assert watched.quota_writes == settled

    play(story, controller=False)


def test_what_others_write_into_the_annotation_is_put_right_and_without_keys_it_goes():
    async def story(harness):
        await harness.add(kinds.RESOURCE_QUOTA, quota(100))
        await written(harness, {GPUMEM: "0"})
        lie = {"metadata": {"annotations": {names.QUOTA_USED: "nothing"}}}
        await harness.cluster.patch(kinds.RESOURCE_QUOTA, "q", lie, namespace=SPACE)
        await harness.sleep(10)
        assert await annotation(harness) == {GPUMEM: "0"}
        await harness.cluster.patch(kinds.RESOURCE_QUOTA, "q", {"spec": {"hard": {GPUMEM: None}}}, namespace=SPACE)
        await written(harness, None)

    play(story, **QUICK)


def test_native_mode_shows_usage_too():
    async def story(harness):
        await harness.add(kinds.RESOURCE_QUOTA, quota(100))
        await written(harness, {GPUMEM: "0"})

    play(story, mode=Mode.NATIVE, **MANAGED)


def test_a_quota_that_is_not_enforced_is_told_so_once():
    async def story(harness):
        scoped = quota(100)
        scoped["spec"]["scopes"] = ["NotTerminating"]
        await harness.add(kinds.RESOURCE_QUOTA, scoped)

        async def reported():
            return bool(await harness.events("QuotaNotEnforced"))

        await harness.until(reported)
        await harness.cluster.patch(kinds.RESOURCE_QUOTA, "q", {"metadata": {"labels": {"a": "b"}}}, namespace=SPACE)
        await harness.sleep(30)
        [event] = await harness.events("QuotaNotEnforced")
        assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("ResourceQuota", "q")
        assert "move them to a quota without scopes" in event["note"]
        assert await annotation(harness) is None

    play(story, **QUICK)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("limits.nvidia.com/gpumemory", "write one of limits.nvidia.com/gpu, "),
        ("limits.nvida.com/gpumem", "write limits.nvidia.com/gpumem"),
        ("requests.nvidia.com/gpumem", "write limits.nvidia.com/gpumem"),
        ("nvidia.com/gpu", "write limits.nvidia.com/gpu"),
        ("limits.metax-tech.com/vmem", "limits.metax-tech.com/vmemory"),
        ("requests.nvidia.com/gpu", ""),
        ("limits.example.com/widgets", ""),
        ("limits.cpu", ""),
    ],
)
def test_a_key_that_limits_nothing_is_told_with_the_keys_there_are(key, instead):
    """The other keys of the quota hold."""

    async def story(harness):
        body = quota(100)
        body["spec"]["hard"][key] = "1"
        await harness.add(kinds.RESOURCE_QUOTA, body)
        await written(harness, {GPUMEM: "0"})
        await harness.sleep(10)
        notes = [event["note"] for event in await harness.events("QuotaNotEnforced")]
        assert [(key in note, "limits nothing" in note, instead in note) for note in notes] == [(True,) * 3] * bool(
            instead
        )

    play(story, **QUICK)


def test_uninstall_takes_the_annotation_away():
    async def story(harness):
        await harness.add(kinds.RESOURCE_QUOTA, quota(100))
        task = harness.start(**QUICK)
        await written(harness, {GPUMEM: "0"})
        await harness.stop(task)
        said = []
        await Uninstaller(harness.cluster, Plan(), harness.clock, said.append).run()
        assert await annotation(harness) is None
        assert f"annotation {names.QUOTA_USED} removed from 1 quota" in said

    play(story, controller=False)


def test_quotas_whose_writes_hang_hold_up_no_other_namespace():
    async def story(harness):
        body = quota(30_000)
        for number in range(10):
            evil = {"name": f"q{number}", "namespace": "a-slow-one"}  # by name it comes first
            await harness.add(kinds.RESOURCE_QUOTA, body | {"metadata": evil})

        async def hang(request):
            if request.is_write and request.kind is kinds.RESOURCE_QUOTA and request.namespace == "a-slow-one":
                await asyncio.sleep(4)
                raise Unavailable("a webhook does not answer")

        harness.cluster.hooks.append(hang)
        await harness.sleep(6)
        await harness.add(kinds.RESOURCE_QUOTA, body)
        await written(harness, {GPUMEM: "0"})

    play(story, **QUICK)


def test_a_quota_that_cannot_be_written_is_left_alone_for_longer_each_time():
    async def story(harness):
        await harness.add(kinds.RESOURCE_QUOTA, quota(30_000))
        tries = 0

        async def refuse(request):
            nonlocal tries
            if request.is_write and request.kind is kinds.RESOURCE_QUOTA and request.name == "q":
                tries += 1
                raise Invalid("a webhook refuses it")

        harness.cluster.hooks.append(refuse)
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", 8, device_class="ours"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.sleep(1800)
        assert 6 <= tries <= 20
        harness.cluster.hooks.remove(refuse)
        await harness.sleep(600)
        assert await annotation(harness) == {GPUMEM: str(8 * 1024)}

    play(story, **QUICK)
