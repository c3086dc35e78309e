"""Pods that share a claim: those that fit run, as under kube-scheduler, and those that cannot are nobody else's business."""

import pytest

from controller.scheduling.decide import decide
from hami_dra.api import kinds
from tests.support.scene import SPACE, claim, first_fit, play, pod

QUICK = {"quiet_time": 0.0, "probe": False}
NO_SUCH_NODE = {"nodeSelector": {"no": "such"}}
OTHER_GATE = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}


async def running(scene, *names_):
    return [name for name in names_ if await scene.node_of(name)]


@pytest.mark.parametrize("decide", [first_fit, decide])
@pytest.mark.parametrize("first", ["hopeless", "p"])
@pytest.mark.parametrize(
    "spec", [NO_SUCH_NODE, {**NO_SUCH_NODE, "schedulerName": "kueue"}, {**NO_SUCH_NODE, **OTHER_GATE}]
)
def test_a_pod_that_can_never_run_keeps_nobody_from_running(spec, first, decide):
    async def story(scene):
        bodies = {
            "hopeless": pod("hopeless", claims=["x"], gated=True, **spec),
            "p": pod("p", claims=["x"], gated=True),
        }
        await scene.add(kinds.RESOURCE_CLAIM, claim("x"))
        await scene.add(kinds.POD, bodies.pop(first), *bodies.values())
        await scene.bound("p", seconds=5)
        await scene.sleep(600)
        assert await running(scene, "p", "hopeless") == ["p"]
        assert await scene.events("AllocationUndone") == []
        refusals = await scene.events("FilteringFailed")
        assert "p" not in {event["regarding"]["name"] for event in refusals}

    play(story, decide=decide, **QUICK)


@pytest.mark.parametrize("decide", [first_fit, decide])
def test_three_pods_on_nodes_for_two_run_as_under_kube_scheduler(decide):
    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM, claim("x"))
        pods = ["p0", "p1", "p2"]
        await scene.add(kinds.POD, *(pod(name, claims=["x"], cpu="4", gated=True) for name in pods))
        await scene.sleep(200)
        lucky = await running(scene, *pods)
        assert len(lucky) == 2
        [waits] = {*pods} - {*lucky}
        told = {event["regarding"]["name"]: event["note"] for event in await scene.events("SharedClaimApart")}
        node = await scene.node_of(lucky[0])
        assert told.keys() == {"p0", waits}
        assert (
            f"Pod {SPACE}/{waits}, with which it shares ResourceClaim {SPACE}/x, cannot run on node {node}"
            in told["p0"]
        )
        assert told["p0"].endswith("NodeInsufficientResources")
        assert f"for Pod {SPACE}/p0, and this pod does not fit there: NodeInsufficientResources" in told[waits]
        assert await scene.events("AllocationUndone") == []
        await scene.delete_pod(lucky[0])
        await scene.bound(waits)
        await scene.check_bound_pods_have_their_claims()

    play(story, decide=decide, node_options={"cpu": "8"}, **QUICK)


@pytest.mark.parametrize("decide", [first_fit, decide])
def test_the_node_that_takes_all_of_them_is_preferred(decide):
    async def story(scene):
        await scene.add_node("small", cpu="4")
        await scene.add_node("wide", cpu="12")
        await scene.add(kinds.RESOURCE_CLAIM, claim("x"))
        pods = ["p0", "p1", "p2"]
        await scene.add(kinds.POD, *(pod(name, claims=["x"], cpu="4") for name in pods))
        await scene.bound(*pods)
        assert {await scene.node_of(name) for name in pods} == {"wide"}
        assert await scene.events("SharedClaimApart") == []

    play(story, nodes=0, decide=decide, **QUICK)


def test_a_pod_that_finds_no_room_takes_nothing_from_those_it_shares_with():
    """`newcomer` has a second claim that fits nowhere beside the shared one: its sibling, not bound yet, keeps its claim."""

    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM, claim("x"), claim("huge", 200))
        await scene.add(kinds.POD, pod("sibling", claims=["x"]))
        await scene.sleep(1)
        before = (await scene.claim("x")).status.allocation
        assert before is not None
        await scene.add(kinds.POD, pod("newcomer", claims=["x", "huge"]))
        await scene.sleep(30)
        found = await scene.claim("x")
        assert found.status.allocation == before
        assert await scene.events("AllocationUndone") == []

    play(story, scheduler=False, **QUICK)


def test_one_that_kube_scheduler_refuses_does_not_move_the_claim_from_under_one_that_it_has_not_looked_at():
    async def story(scene):
        await scene.add(kinds.RESOURCE_CLAIM, claim("x"))
        await scene.add(kinds.POD, pod("q", claims=["x"]), pod("p", claims=["x"]))
        await scene.sleep(1)
        before = (await scene.claim("x")).status.allocation
        assert before is not None
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}

        async def refuse(name):
            patch = {"status": {"conditions": [refused]}}
            await scene.cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")

        await refuse("q")
        await scene.sleep(120)
        assert (await scene.claim("x")).status.allocation == before
        await refuse("p")
        await scene.sleep(120)
        assert [event["reason"] for event in await scene.events("AllocationUndone")] == ["AllocationUndone"]

    play(story, scheduler=False, **QUICK)
