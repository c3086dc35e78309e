"""Deletion costs on the pods of ReplicaSets: written on change, seldom, and never over those of others."""

import pytest

from controller.decide import decide
from hami_dra.api import kinds, names
from hami_dra.kube.protocol import Conflict, Forbidden
from tests.support.harness import SPACE, pod, template
from tests.support.harness import play as play_scene

ON = {"quiet_time": 0.0, "probe": False, "decide": decide, "deletion_cost": True}
DENIED = Forbidden('admission webhook "policy.example.com" denied the request: no changes on Sundays')


def play(story, **options):
    play_scene(story, **{"nodes": 1, "node_options": {"cards": 4}, **ON, **options})


async def web(harness, replicas, *, memory=12):
    await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("card", memory))
    like = pod("ignored", templates=["card"], gated=True, cpu="1m")
    labels = {"app": "web"}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": like["spec"]},
    }
    await harness.add(kinds.REPLICA_SET, {"metadata": {"name": "web", "namespace": SPACE, "uid": "web"}, "spec": spec})
    await harness.until(lambda: bound(harness, replicas))


async def bound(harness, count):
    return len([each for each in await harness.pods() if each.spec.node_name]) == count


async def scale(harness, replicas):
    await harness.cluster.patch(kinds.REPLICA_SET, "web", {"spec": {"replicas": replicas}}, namespace=SPACE)
    await harness.until(lambda: bound(harness, replicas))


async def annotate(harness, name, cost):
    patch = {"metadata": {"annotations": {names.POD_DELETION_COST: cost}}}
    await harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE)


async def costs(harness):
    found = [each.metadata.annotations.get(names.POD_DELETION_COST) for each in await harness.pods()]
    return sorted(each for each in found if each is not None)


def test_a_pod_alone_on_its_node_needs_none_and_others_are_written_once():
    async def story(harness):
        await web(harness, 1)
        await harness.sleep(20)
        assert await costs(harness) == []
        await scale(harness, 3)
        await harness.sleep(20)
        assert await costs(harness) == ["200", "201", "202"]
        before = [each.metadata.resource_version for each in await harness.pods()]
        await harness.sleep(600)
        assert [each.metadata.resource_version for each in await harness.pods()] == before

    play(story)


def test_a_cost_that_changes_is_written_again_after_five_minutes_and_removed_when_it_is_nothing():
    async def story(harness):
        await web(harness, 2)
        await harness.sleep(20)
        assert await costs(harness) == ["100", "101"]
        await scale(harness, 1)
        (left,) = await costs(harness)
        await harness.sleep(200)
        assert await costs(harness) == [left]
        await harness.sleep(150)
        assert await costs(harness) == []
        (only,) = await harness.pods()
        assert names.DELETION_COST not in only.metadata.annotations

    play(story)


def test_the_cost_of_someone_else_stays():
    async def story(harness):
        await web(harness, 2)
        first, second = [each.metadata.name for each in await harness.pods()]
        await annotate(harness, first, "7")
        await harness.sleep(20)
        assert await costs(harness) == ["101", "7"] or await costs(harness) == ["100", "7"]
        await annotate(harness, second, "-1")
        await scale(harness, 3)
        await harness.sleep(600)
        assert (await costs(harness))[0] == "-1"
        assert "7" in await costs(harness)

    play(story)


def test_without_the_option_none_is_written():
    async def story(harness):
        await web(harness, 2)
        await harness.sleep(60)
        assert await costs(harness) == []

    play(story, deletion_cost=False)


@pytest.mark.parametrize(("error", "most"), [(DENIED, 9), (Conflict("changed meanwhile"), 200)])
def test_a_write_that_is_refused_is_tried_again_as_seldom_as_one_that_changes(error, most):
    async def story(harness):
        await web(harness, 3)
        before = harness.cluster.requests["patch pods"]
        harness.cluster.fail_next(error, verb="patch", kind=kinds.POD, times=10**6)
        await harness.sleep(620)
        assert 6 < harness.cluster.requests["patch pods"] - before <= most
        harness.cluster.clear_faults()
        await harness.sleep(320)
        assert await costs(harness) == ["200", "201", "202"]

    play(story)
