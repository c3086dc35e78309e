"""Pods that share a claim: those that fit run, as under kube-scheduler, and those that cannot are nobody else's business."""

import pytest

from controller.decide import decide
from hami_dra.api import kinds
from tests.support.harness import SPACE, claim, first_fit, play, pod

QUICK = {"quiet_time": 0.0, "probe": False}
NO_SUCH_NODE = {"nodeSelector": {"no": "such"}}
OTHER_GATE = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}


async def running(harness, *names_):
    return [name for name in names_ if await harness.node_of(name)]


@pytest.mark.parametrize("decide", [first_fit, decide])
@pytest.mark.parametrize("first", ["hopeless", "p"])
@pytest.mark.parametrize(
    "spec", [NO_SUCH_NODE, {**NO_SUCH_NODE, "schedulerName": "kueue"}, {**NO_SUCH_NODE, **OTHER_GATE}]
)
def test_a_pod_that_can_never_run_keeps_nobody_from_running(spec, first, decide):
    async def story(harness):
        bodies = {
            "hopeless": pod("hopeless", claims=["x"], gated=True, **spec),
            "p": pod("p", claims=["x"], gated=True),
        }
        await harness.add(kinds.RESOURCE_CLAIM, claim("x"))
        await harness.add(kinds.POD, bodies.pop(first), *bodies.values())
        await harness.bound("p", seconds=5)
        await harness.sleep(600)
        assert await running(harness, "p", "hopeless") == ["p"]
        assert await harness.events("AllocationUndone") == []
        refusals = await harness.events("FilteringFailed")
        assert "p" not in {event["regarding"]["name"] for event in refusals}

    play(story, decide=decide, **QUICK)


@pytest.mark.parametrize("decide", [first_fit, decide])
def test_three_pods_on_nodes_for_two_run_as_under_kube_scheduler(decide):
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("x"))
        pods = ["p0", "p1", "p2"]
        await harness.add(kinds.POD, *(pod(name, claims=["x"], cpu="4", gated=True) for name in pods))
        await harness.sleep(200)
        lucky = await running(harness, *pods)
        assert len(lucky) == 2
        [waits] = {*pods} - {*lucky}
        reported = {event["regarding"]["name"]: event["note"] for event in await harness.events("SharedClaimApart")}
        node = await harness.node_of(lucky[0])
        assert reported.keys() == {"p0", waits}
        assert (
            f"Pod {SPACE}/{waits}, with which it shares ResourceClaim {SPACE}/x, cannot run on node {node}"
            in reported["p0"]
        )
        assert reported["p0"].endswith("NodeInsufficientResources")
        assert f"for Pod {SPACE}/p0, and this pod does not fit there: NodeInsufficientResources" in reported[waits]
        assert await harness.events("AllocationUndone") == []
        await harness.delete_pod(lucky[0])
        await harness.bound(waits)
        await harness.check_bound_pods_have_their_claims()

    play(story, decide=decide, node_options={"cpu": "8"}, **QUICK)


@pytest.mark.parametrize("decide", [first_fit, decide])
def test_the_node_that_takes_all_of_them_is_preferred(decide):
    async def story(harness):
        await harness.add_node("small", cpu="4")
        await harness.add_node("wide", cpu="12")
        await harness.add(kinds.RESOURCE_CLAIM, claim("x"))
        pods = ["p0", "p1", "p2"]
        await harness.add(kinds.POD, *(pod(name, claims=["x"], cpu="4") for name in pods))
        await harness.bound(*pods)
        assert {await harness.node_of(name) for name in pods} == {"wide"}
        assert await harness.events("SharedClaimApart") == []

    play(story, nodes=0, decide=decide, **QUICK)


def test_a_pod_that_finds_no_room_takes_nothing_from_those_it_shares_with():
    """`newcomer` has a second claim that fits nowhere beside the shared one: its sibling, not bound yet, keeps its claim."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("x"), claim("huge", 200))
        await harness.add(kinds.POD, pod("sibling", claims=["x"]))
        await harness.sleep(1)
        before = (await harness.claim("x")).status.allocation
        assert before is not None
        await harness.add(kinds.POD, pod("newcomer", claims=["x", "huge"]))
        await harness.sleep(30)
        found = await harness.claim("x")
        assert found.status.allocation == before
        assert await harness.events("AllocationUndone") == []

    play(story, scheduler=False, **QUICK)


def test_one_that_kube_scheduler_refuses_does_not_move_the_claim_from_under_one_that_it_has_not_looked_at():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("x"))
        await harness.add(kinds.POD, pod("q", claims=["x"]), pod("p", claims=["x"]))
        await harness.sleep(1)
        before = (await harness.claim("x")).status.allocation
        assert before is not None
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}

        async def refuse(name):
            patch = {"status": {"conditions": [refused]}}
            await harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")

        await refuse("q")
        await harness.sleep(120)
        assert (await harness.claim("x")).status.allocation == before
        await refuse("p")
        await harness.sleep(120)
        assert [event["reason"] for event in await harness.events("AllocationUndone")] == ["AllocationUndone"]

    play(story, scheduler=False, **QUICK)
