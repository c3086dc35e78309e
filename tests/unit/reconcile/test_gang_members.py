"""Who counts as a member: pods that are being deleted, and pods that have finished. docs/gangs.md, "Life of a gang"."""

import pytest

from hami_dra.api import kinds
from tests.support.harness import SPACE, play, template
from tests.unit.reconcile.gang_stories import QUICK, WHOLE, add_group, gates, grouped, holders, member, nodes, prepare

ENDING = "example.com/still-ending"
SOURCES = pytest.mark.parametrize("source", ["labels", "PodGroup"])


def made(source, *names, owner=""):
    """Members, of the Job with that uid."""
    found = [(grouped if source == "PodGroup" else member)(name) for name in names]
    for body in found if owner else ():
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": owner, "controller": True}
        body["metadata"]["ownerReferences"] = [reference]
    return found


def numbered(prefix, count=4):
    return [f"{prefix}{i}" for i in range(count)]


async def job(harness, name):
    """UID of what stands for a Job: the garbage collector must find it."""
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(name, WHOLE))
    return (await harness.cluster.get(kinds.RESOURCE_CLAIM_TEMPLATE, name, SPACE)).metadata.uid


async def finish(harness, phase, *names):
    for name in names:
        await harness.cluster.patch(
            kinds.POD, name, {"status": {"phase": phase}}, namespace=SPACE, subresource="status"
        )


async def running(harness, *names):
    where = await nodes(harness)
    return [name for name in names if where.get(name)]


def play_jobs(source, story):
    async def run(harness):
        harness.start(**QUICK)
        await prepare(harness)
        if source == "PodGroup":
            await add_group(harness, "train", 4)
        await story(harness)

    play(run, controller=False)


@SOURCES
@pytest.mark.parametrize("gone", ["before", "after", "one by one"])
def test_a_gang_that_comes_back_while_its_old_pods_end_is_a_new_gang(source, gone):
    """Two of the four cards go to others meanwhile: none of the new ones runs."""

    async def story(harness):
        old = made(source, *numbered("old"))
        for body in old:
            body["metadata"]["finalizers"] = [ENDING]
        await harness.add(kinds.POD, *old)
        await harness.bound(*numbered("old"))

        async def end(*names):
            for name in names:
                await harness.cluster.patch(kinds.POD, name, {"metadata": {"finalizers": None}}, namespace=SPACE)
                await harness.sleep(3)

        for name in numbered("old"):
            await harness.delete_pod(name)
        await harness.patch_node("n1", {"spec": {"unschedulable": True}})
        if gone == "before":
            await end(*numbered("old"))
        for body in made(source, *numbered("new")):
            await harness.add(kinds.POD, body)
            if gone == "one by one":
                await end(body["metadata"]["name"].replace("new", "old"))
        if gone == "after":
            await harness.sleep(2)
            await end(*numbered("old"))
        await harness.sleep(600)
        assert await running(harness, *numbered("new")) == []
        assert await holders(harness) == set()
        await harness.patch_node("n1", {"spec": {"unschedulable": False}})
        await harness.bound(*numbered("new"))

    play_jobs(source, story)


@SOURCES
def test_one_member_is_replaced_while_it_ends(source):
    """The node it leaves says nothing about where its successor may go."""

    async def story(harness):
        bodies = made(source, *numbered("m"))
        bodies[3]["metadata"]["finalizers"] = [ENDING]
        await harness.add(kinds.POD, *bodies)
        await harness.bound(*numbered("m"))
        await harness.delete_pod("m3")
        await harness.add_node("n9")
        await harness.add(kinds.POD, *made(source, "m3b"))
        await harness.bound("m3b", seconds=5)

    play_jobs(source, story)


@SOURCES
def test_the_last_pods_of_a_job_run_though_all_others_have_finished(source):
    """Completions 5, parallelism 4."""

    async def story(harness):
        job1 = await job(harness, "job-1")
        await harness.add(kinds.POD, *made(source, *numbered("j"), owner=job1))
        await harness.bound(*numbered("j"))
        await finish(harness, "Succeeded", *numbered("j"))
        await harness.add(kinds.POD, *made(source, "j4", owner=job1))
        await harness.bound("j4", seconds=10)

    play_jobs(source, story)


@SOURCES
def test_the_last_member_is_retried(source):
    async def story(harness):
        job1 = await job(harness, "job-1")
        await harness.add(kinds.POD, *made(source, *numbered("j"), owner=job1))
        await harness.bound(*numbered("j"))
        await finish(harness, "Succeeded", "j0", "j1", "j2")
        await harness.sleep(30)
        await finish(harness, "Failed", "j3")
        await harness.add(kinds.POD, *made(source, "j3b", owner=job1))
        await harness.bound("j3b", seconds=10)

    play_jobs(source, story)


def test_the_next_job_of_that_name_starts_from_nothing():
    """As of a CronJob, whose Jobs are kept with their pods. Its pods come slowly, and one card is in use."""

    async def story(harness):
        job1 = await job(harness, "job-1")
        job2 = await job(harness, "job-2")
        await harness.add(kinds.POD, *made("labels", *numbered("a"), owner=job1))
        await harness.bound(*numbered("a"))
        await finish(harness, "Succeeded", *numbered("a"))
        await harness.patch_node("n1", {"spec": {"unschedulable": True}})
        for body in made("labels", *numbered("b"), owner=job2):
            await harness.add(kinds.POD, body)
            await harness.sleep(20)
            assert await running(harness, *numbered("b")) == []
        await harness.patch_node("n1", {"spec": {"unschedulable": False}})
        await harness.bound(*numbered("b"))

    play_jobs("labels", story)


@SOURCES
def test_the_next_wave_of_a_job_runs_as_a_whole_or_not_at_all(source):
    """Completions 8, parallelism 4, one pod created after the other: finished ones stand in for none that comes yet."""

    async def story(harness):
        job1 = await job(harness, "job-1")
        await harness.add(kinds.POD, *made(source, *numbered("j"), owner=job1))
        await harness.bound(*numbered("j"))
        await finish(harness, "Succeeded", *numbered("j"))
        await harness.patch_node("n1", {"spec": {"unschedulable": True}})
        second = [f"k{i}" for i in range(4)]
        for body in made(source, *second, owner=job1):
            await harness.add(kinds.POD, body)
            await harness.sleep(0.5)
        await harness.sleep(60)
        assert await running(harness, *second) == []
        await harness.patch_node("n1", {"spec": {"unschedulable": False}})
        await harness.bound(*second)

    play_jobs(source, story)


@SOURCES
def test_a_suspended_job_resumes_as_a_whole(source):
    """One of four has succeeded before: the three that are left run together."""

    async def story(harness):
        job1 = await job(harness, "job-1")
        await harness.add(kinds.POD, *made(source, *numbered("j"), owner=job1))
        await harness.bound(*numbered("j"))
        await finish(harness, "Succeeded", "j0")
        for name in ("j1", "j2", "j3"):
            await harness.delete_pod(name)
        await harness.patch_node("n1", {"spec": {"unschedulable": True}})
        again = ["k1", "k2", "k3"]
        for body in made(source, *again, owner=job1):
            await harness.add(kinds.POD, body)
        await harness.sleep(60)
        assert await running(harness, *again) == []
        await harness.patch_node("n1", {"spec": {"unschedulable": False}})
        await harness.bound(*again)

    play_jobs(source, story)


def test_an_elastic_member_does_not_run_alone_when_the_others_go_during_its_commit():
    """Two of two run, the third is being committed: both are deleted."""

    async def story(harness):
        await harness.add(kinds.POD, member("m0", least=2), member("m1", least=2))
        await harness.bound("m0", "m1")

        async def go(request):
            if request.label == "patch resourceclaims/status" and request.name.startswith("m2"):
                harness.cluster.hooks.remove(go)
                await harness.delete_pod("m0")
                await harness.delete_pod("m1")
                await harness.sleep(0.5)

        harness.cluster.hooks.append(go)
        await harness.add(kinds.POD, member("m2", least=2))
        await harness.sleep(60)
        assert go not in harness.cluster.hooks
        assert await gates(harness) == {"m2"}
        assert await holders(harness) == set()

    play_jobs("labels", story)
