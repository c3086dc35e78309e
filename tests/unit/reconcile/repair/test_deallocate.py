"""kube-scheduler does not bind what we allocated: taken back, remembered, placed elsewhere; nothing is lost on the way."""

import pytest

from controller.reconcile.repair.deallocation_verdict import PinnedPod, verdict
from hami_dra.api import kinds, names
from hami_dra.api.core import Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus, Toleration
from hami_dra.api.meta import Condition, ObjectMeta
from hami_dra.kube.protocol import Unavailable
from tests.support.census import census, grown
from tests.support.controller_settings import controller_settings
from tests.support.harness import SPACE, claim, play, pod, template

QUICK = {"quiet_time": 0.0, "probe": False}
SETTINGS = controller_settings(managed=frozenset({"x"}))
READY = NodeStatus(conditions=(Condition(type="Ready", status="True"),))


def refused_pod(**status):
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="no cpu")
    return Pod(metadata=ObjectMeta(name="p"), status=PodStatus(conditions=(condition,), **status))


def judge(pod=None, node=None, *, now, refused_at=None, since=0.0, **seen):
    watched = PinnedPod("ns/p", "n1", since, None, refused_at)
    node = Node(metadata=ObjectMeta(name="n1"), status=READY) if node is None else node
    found = verdict(watched, pod or refused_pod(), node or None, now, SETTINGS, **seen)
    return found.cause if found else None


def test_unschedulable_is_believed_after_fifteen_seconds():
    assert judge(now=14.9 + 2, refused_at=2) is None
    assert judge(now=15 + 2, refused_at=2) == "unschedulable"


def test_a_condition_from_before_the_commit_counts_only_after_a_minute():
    assert judge(now=59) is None
    assert judge(now=60) == "unschedulable"


def test_volumes_that_are_being_bound_are_waited_for_as_long_as_kube_scheduler_does():
    assert judge(now=599, binds_volumes=True) is None
    assert judge(now=600, binds_volumes=True) == "unschedulable"
    assert judge(now=20, refused_at=2, binds_volumes=True) == "unschedulable", "it has said since that it gave up"


def test_a_pod_that_kube_scheduler_has_not_looked_at_is_waited_for():
    assert judge(pod=Pod(), now=1000) is None
    gated = Condition(type="PodScheduled", status="False", reason="SchedulingGated")
    assert judge(pod=Pod(status=PodStatus(conditions=(gated,))), now=1000) is None


def test_a_node_that_is_being_emptied_for_the_pod_is_waited_for():
    nominated = refused_pod(nominated_node_name="n1")
    assert judge(pod=nominated, now=1000, refused_at=0, victims=True) is None
    assert judge(pod=nominated, now=74, refused_at=0) is None
    assert judge(pod=refused_pod(nominated_node_name="n2"), now=15, refused_at=0) == "unschedulable"


def test_a_nomination_that_nobody_makes_room_for_is_our_own():
    """kube-scheduler takes ours away when it refuses the node, unless it runs without preemption or the pod wants none."""
    nominated = refused_pod(nominated_node_name="n1")
    assert judge(pod=nominated, now=75, refused_at=0) == "unschedulable"
    gentle = Pod(spec=PodSpec(preemption_policy="Never"), status=nominated.status)
    assert judge(pod=gentle, now=15, refused_at=0, victims=True) == "unschedulable"


def test_a_pod_that_is_bound_elsewhere_is_not_waited_for():
    assert judge(pod=Pod(spec=PodSpec(node_name="n2")), now=0) == "misplaced"


def test_a_node_that_is_no_good_any_more_is_given_up_at_once():
    assert judge(node=False, now=0) == "node"
    not_ready = Node(status=NodeStatus(conditions=(Condition(type="Ready", status="Unknown"),)))
    assert judge(node=not_ready, now=0) == "node"
    cordoned = Node(spec=NodeSpec(unschedulable=True), status=READY)
    assert judge(pod=Pod(), node=cordoned, now=0) == "node"
    daemon = Pod(spec=PodSpec(tolerations=(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),)))
    assert judge(pod=daemon, node=cordoned, now=0) is None
    tolerant = Pod(spec=PodSpec(tolerations=(Toleration(operator="Exists"),)))
    assert judge(pod=tolerant, node=not_ready, now=0) is None
    evicted_late = Pod(spec=PodSpec(tolerations=(Toleration(operator="Exists", effect="NoExecute"),)))
    assert judge(pod=evicted_late, node=not_ready, now=0) == "node"


# --- stories ---------------------------------------------------------------------------------------------------------------


async def check_all(harness):
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.check_nothing_leaked()


async def refuse(harness, name, message="0/2 nodes are available: no volume.", nominated=None):
    """What kube-scheduler says of a pod it cannot place, and which node it empties for it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    patch = {"status": {"conditions": [condition], "nominatedNodeName": nominated}}
    await harness.cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")


async def bind(harness, name):
    """What kube-scheduler does when all claims of a pod agree on a node."""
    [held, *_] = await harness.claims_of(name)
    await harness.cluster.bind(name, SPACE, pinned(held))


def pinned(held):
    assert held.status.allocation is not None
    return held.status.allocation.node_selector.node_selector_terms[0].match_fields[0].values[0]


async def node_in_claim(harness, name):
    allocation = (await harness.claim(name)).status.allocation
    return pinned(await harness.claim(name)) if allocation else ""


def until_on(harness, claim_name, node):
    async def moved():
        return await node_in_claim(harness, claim_name) == node

    return harness.until(moved)


@pytest.mark.parametrize("claims", [["a"], ["a", "b"]])
def test_what_kube_scheduler_refuses_moves_to_another_node_with_all_its_claims(claims):
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
        await harness.add(kinds.POD, pod("p", claims=claims))
        await until_on(harness, "a", "n0")
        await refuse(harness, "p")
        await harness.sleep(14)
        assert await node_in_claim(harness, "a") == "n0"
        for name in claims:
            await until_on(harness, name, "n1")
        [event] = await harness.events("AllocationUndone")
        assert "no volume" in event["note"]
        await bind(harness, "p")
        await check_all(harness)
        assert harness.metric("hami_dra_undos_total", cause="unschedulable") == len(claims)

    play(story, scheduler=False, **QUICK)


def test_a_claim_that_kube_scheduler_clears_again_goes_to_a_third_node():
    """It clears the claim before it writes the pod: our nomination is still there, with the condition of the last attempt."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        clear = {"status": {"allocation": None, "reservedFor": None}}
        seen = []
        for _ in range(3):
            await harness.until(lambda: allocated(harness, "a"))
            seen.append(await node_in_claim(harness, "a"))
            await harness.sleep(1)
            assert (await harness.pod("p")).status.nominated_node_name == seen[-1]
            if len(seen) < 3:
                await harness.cluster.patch(kinds.RESOURCE_CLAIM, "a", clear, namespace=SPACE, subresource="status")
            if len(seen) == 1:
                await refuse(harness, "p")
        assert len(set(seen)) == 3, seen
        assert harness.metric("hami_dra_repeated_undos_total") == 1

    play(story, nodes=3, scheduler=False, **QUICK)


async def allocated(harness, name):
    return bool(await node_in_claim(harness, name))


def test_a_second_refusal_is_told_with_kube_schedulers_words():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        await until_on(harness, "a", "n0")
        await refuse(harness, "p", "0/3 nodes are available: 1 of them is haunted.")
        await until_on(harness, "a", "n1")
        assert await harness.events("RepeatedlyRefused") == []
        assert harness.metric("hami_dra_repeated_undos_total") == 0
        await refuse(harness, "p", "0/3 nodes are available: 2 of them are haunted.")
        await until_on(harness, "a", "n2")
        [event] = await harness.events("RepeatedlyRefused")
        assert event["note"].startswith("2 allocations of this pod were taken back")
        assert "2 of them are haunted" in event["note"]
        assert harness.metric("hami_dra_repeated_undos_total") == 1
        await bind(harness, "p")
        await check_all(harness)

    play(story, nodes=3, scheduler=False, **QUICK)


def test_a_refused_node_is_tried_again_when_it_changes():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"], gated=True))
        await until_on(harness, "a", "n0")
        await harness.until(lambda: ungated(harness, "p"))
        await refuse(harness, "p")

        async def cleared():
            return (await harness.claim("a")).status.allocation is None

        await harness.until(cleared)
        await harness.sleep(10)
        assert await cleared()  # the only node is refused
        await harness.patch_node("n0", {"metadata": {"labels": {"disk": "ssd"}}})
        await until_on(harness, "a", "n0")

    play(story, nodes=1, scheduler=False, **QUICK)


async def ungated(harness, name):
    return not (await harness.pod(name)).spec.scheduling_gates


def test_kube_scheduler_keeps_no_room_on_a_node_that_was_given_up():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"], preemptionPolicy="Never"))
        await until_on(harness, "a", "n0")
        await refuse(harness, "p", nominated="n0")
        await harness.sleep(20)
        assert await node_in_claim(harness, "a") == ""
        assert (await harness.pod("p")).status.nominated_node_name == ""

    play(story, nodes=1, scheduler=False, **QUICK)


def test_no_refusal_is_remembered_of_a_pod_that_went_in_the_middle_of_an_undo():
    async def story(harness):
        async def hook(request):
            if request.label == "patch pods/status" and request.body["status"] == {"nominatedNodeName": None}:
                await harness.delete_pod("p")
                await harness.sleep(1)

        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        await until_on(harness, "a", "n0")
        assert (await harness.pod("p")).status.nominated_node_name == "n0"
        before = census("controller.reconcile.queueing.node_backoff")
        harness.cluster.hooks.append(hook)
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await until_on(harness, "a", "")
        await harness.sleep(60)
        assert await harness.pods() == []
        assert grown(before, census("controller.reconcile.queueing.node_backoff")) == {}

    play(story, nodes=1, scheduler=False, **QUICK)


def test_a_refusal_ends_by_itself():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        await until_on(harness, "a", "n0")
        await refuse(harness, "p")
        await harness.sleep(20)
        assert await node_in_claim(harness, "a") == ""
        await harness.sleep(40)
        assert await node_in_claim(harness, "a") == "n0"

    play(story, nodes=1, scheduler=False, **QUICK)


@pytest.mark.parametrize("trouble", ["cordon", "not ready", "gone"])
def test_a_node_that_goes_bad_between_commit_and_binding(trouble):
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
        await harness.add(kinds.POD, pod("p", claims=["a", "b"]))
        await until_on(harness, "b", "n0")
        if trouble == "cordon":
            await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        elif trouble == "not ready":
            conditions = [{"type": "Ready", "status": "False"}]
            await harness.patch_node("n0", {"status": {"conditions": conditions}}, status=True)
        else:
            await harness.cluster.delete(kinds.NODE, "n0")
        await until_on(harness, "a", "n1")
        await until_on(harness, "b", "n1")
        assert (await harness.pod("p")).status.nominated_node_name == "n1"
        await bind(harness, "p")
        await check_all(harness)
        assert harness.metric("hami_dra_undos_total", cause="node") == 2

    play(story, scheduler=False, **QUICK)


def test_a_pod_that_tolerates_a_node_that_is_not_ready_keeps_its_devices_there():
    async def story(harness):
        await harness.patch_node("n0", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, status=True)
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"], tolerations=[{"operator": "Exists"}]))
        await until_on(harness, "a", "n0")
        await harness.sleep(60)
        assert harness.metric("hami_dra_undos_total", cause="node") == 0
        await bind(harness, "p")
        await check_all(harness)

    play(story, nodes=1, scheduler=False, **QUICK)


def test_what_kube_scheduler_takes_back_itself_is_completed():
    """It clears one claim per attempt; the other one follows, and the node is avoided."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
        await harness.add(kinds.POD, pod("p", claims=["a", "b"]))
        await until_on(harness, "b", "n0")
        clear = {"status": {"allocation": None, "reservedFor": None}}
        await harness.cluster.patch(kinds.RESOURCE_CLAIM, "a", clear, namespace=SPACE, subresource="status")
        await harness.until(lambda: both_on(harness, "n1"), seconds=5)
        await bind(harness, "p")
        await check_all(harness)

    async def both_on(harness, node):
        return {await node_in_claim(harness, "a"), await node_in_claim(harness, "b")} == {node}

    play(story, scheduler=False, **QUICK)


def test_a_node_that_kube_scheduler_empties_for_the_pod_is_taken_when_it_is_free():
    """No victim dies in vain: the nominated node is waited for, although another one has room."""

    async def story(harness):
        await harness.add(kinds.POD, pod("victim", cpu="7", nodeName="n0", terminationGracePeriodSeconds=30))
        patch = {"metadata": {"finalizers": ["example.com/slow"]}}
        await harness.cluster.patch(kinds.POD, "victim", patch, namespace=SPACE)
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"], cpu="4"))
        await until_on(harness, "a", "n1")
        # kube-scheduler gives n1 up (something we do not see) and preempts on n0
        await harness.delete_pod("victim")
        clear = {"status": {"allocation": None, "reservedFor": None}}
        await harness.cluster.patch(kinds.RESOURCE_CLAIM, "a", clear, namespace=SPACE, subresource="status")
        await harness.add_node("n2")
        await refuse(harness, "p", nominated="n0")
        await harness.sleep(20)
        assert await node_in_claim(harness, "a") == ""
        await harness.cluster.patch(kinds.POD, "victim", {"metadata": {"finalizers": None}}, namespace=SPACE)
        await until_on(harness, "a", "n0")
        await bind(harness, "p")
        await check_all(harness)

    play(story, scheduler=False, **QUICK)


def test_a_nomination_that_leads_nowhere_is_not_waited_for_for_ever():
    async def story(harness):
        await harness.add(kinds.POD, pod("victim", cpu="7", nodeName="n0"))
        patch = {"metadata": {"finalizers": ["example.com/stuck"]}}
        await harness.cluster.patch(kinds.POD, "victim", patch, namespace=SPACE)
        await harness.delete_pod("victim")
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        body = pod("p", claims=["a"], cpu="4", schedulingGates=[{"name": "example.com/hold"}])
        await harness.add(kinds.POD, body)
        await refuse(harness, "p", nominated="n0")
        lift = {"spec": {"schedulingGates": None}}
        await harness.cluster.patch(kinds.POD, "p", lift, namespace=SPACE)
        await harness.sleep(50)
        assert await node_in_claim(harness, "a") == ""
        await until_on(harness, "a", "n1")

    play(story, scheduler=False, **QUICK)


def test_a_claim_with_a_bound_user_is_never_taken_back():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("shared"))
        await harness.add(kinds.POD, pod("p", claims=["shared"]))
        await until_on(harness, "shared", "n0")
        await bind(harness, "p")
        await harness.add(kinds.POD, pod("q", claims=["shared"], cpu="100"))
        await refuse(harness, "q")
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await harness.sleep(200)
        assert await node_in_claim(harness, "shared") == "n0"
        assert await harness.events("AllocationUndone") == []

    play(story, scheduler=False, **QUICK)


def test_a_finished_pod_of_a_shared_claim_does_not_keep_it_on_a_node_that_went_bad():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("shared"))
        await harness.add(kinds.POD, pod("run1", claims=["shared"]))
        await until_on(harness, "shared", "n0")
        await bind(harness, "run1")
        await harness.finish_pod("run1")
        await until_on(harness, "shared", "")
        await harness.add(kinds.POD, pod("run2", claims=["shared"]))
        await until_on(harness, "shared", "n0")
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await until_on(harness, "shared", "n1")
        await bind(harness, "run2")
        await check_all(harness)

    play(story, scheduler=False, **QUICK)


def test_a_pod_that_is_being_deleted_keeps_its_devices_until_it_has_ended():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("shared"))
        await harness.add(kinds.POD, pod("run1", claims=["shared"]))
        await until_on(harness, "shared", "n0")
        await bind(harness, "run1")
        patch = {"metadata": {"finalizers": ["example.com/slow"]}}
        await harness.cluster.patch(kinds.POD, "run1", patch, namespace=SPACE)
        await harness.delete_pod("run1")
        await harness.add(kinds.POD, pod("run2", claims=["shared"]))
        await refuse(harness, "run2")
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await harness.sleep(100)
        assert await node_in_claim(harness, "shared") == "n0"
        await harness.finish_pod("run1")
        await until_on(harness, "shared", "n1")

    play(story, scheduler=False, **QUICK)


def test_a_finished_pod_that_cannot_go_is_no_victim_to_wait_for():
    """kube-scheduler's nomination of a node is trusted while pods are on their way out there; this one holds nothing."""

    async def story(harness):
        await harness.add(kinds.POD, pod("done", cpu="1", nodeName="n0"))
        patch = {"metadata": {"finalizers": ["example.com/stuck"]}}
        await harness.cluster.patch(kinds.POD, "done", patch, namespace=SPACE)
        await harness.finish_pod("done")
        await harness.delete_pod("done")
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"], cpu="4"))
        await until_on(harness, "a", "n0")
        await refuse(harness, "p", nominated="n0")
        await until_on(harness, "a", "n1")

    play(story, scheduler=False, **QUICK)


def test_a_pod_is_placed_elsewhere_where_only_a_finished_pod_is_on_its_way_out_of_its_nominated_node():
    async def story(harness):
        await harness.add(kinds.POD, pod("done", cpu="1", nodeName="n0"), pod("big", cpu="7", nodeName="n0"))
        patch = {"metadata": {"finalizers": ["example.com/stuck"]}}
        await harness.cluster.patch(kinds.POD, "done", patch, namespace=SPACE)
        await harness.finish_pod("done")
        await harness.delete_pod("done")
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        waiting = pod("p", claims=["a"], cpu="4", schedulingGates=[{"name": "example.com/other"}])
        await harness.add(kinds.POD, waiting)
        await refuse(harness, "p", nominated="n0")
        await harness.cluster.patch(kinds.POD, "p", {"spec": {"schedulingGates": None}}, namespace=SPACE)
        await harness.until(lambda: is_on(harness, "a", "n1"), seconds=5)

    play(story, scheduler=False, **QUICK)


async def is_on(harness, name, node):
    return await node_in_claim(harness, name) == node


def test_a_refused_node_is_tried_again_when_a_pod_that_is_being_deleted_has_ended_there():
    async def story(harness):
        await harness.add(kinds.POD, pod("leaving", cpu="1", nodeName="n0"))
        await harness.cluster.patch(
            kinds.POD, "leaving", {"metadata": {"finalizers": ["example.com/slow"]}}, namespace=SPACE
        )
        await harness.delete_pod("leaving")
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        await until_on(harness, "a", "n0")
        await refuse(harness, "p")
        await harness.until(lambda: is_on(harness, "a", ""))
        await harness.sleep(5)
        assert await is_on(harness, "a", "")  # the only node is refused for half a minute
        ended = {"status": {"phase": "Succeeded"}}
        await harness.cluster.patch(kinds.POD, "leaving", ended, namespace=SPACE, subresource="status")
        await harness.until(lambda: is_on(harness, "a", "n0"), seconds=1)

    play(story, nodes=1, scheduler=False, **QUICK)


def test_a_pod_that_was_bound_meanwhile_keeps_its_claims():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        await until_on(harness, "a", "n0")
        await harness.sleep(1)
        harness.cluster.pause_watches()
        await bind(harness, "p")
        # our view is behind: it sees only the cordon (as soon as watches flow again both come, the node first)
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        harness.cluster.resume_watches()
        await harness.sleep(30)
        assert await node_in_claim(harness, "a") == "n0"
        await check_all(harness)

    play(story, scheduler=False, **QUICK)


@pytest.mark.parametrize("claims", [["a"], ["a", "b"]])
def test_a_pod_that_is_bound_to_the_node_that_was_just_given_up_gets_its_claims_there(claims):
    """kube-scheduler does not write claims that are reserved already, so a binding on its way is not stopped."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
        await harness.add(kinds.POD, pod("p", claims=claims))
        await until_on(harness, claims[-1], "n0")
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        for name in claims:
            await until_on(harness, name, "n1")
        await harness.cluster.bind("p", SPACE, "n0")
        for name in claims:
            await until_on(harness, name, "n0")
        await check_all(harness)
        assert harness.metric("hami_dra_undos_total", cause="misplaced") == len(claims)

    play(story, scheduler=False, **QUICK)


def test_an_undo_is_carried_out_in_the_end_whatever_the_api_server_says():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        await until_on(harness, "a", "n0")
        await harness.sleep(1)
        harness.cluster.fail_next(Unavailable("lost"), verb="patch", kind=kinds.RESOURCE_CLAIM, applied=True)
        harness.cluster.fail_next(Unavailable("away"), verb="get", kind=kinds.POD, times=2)
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await until_on(harness, "a", "n1")
        await bind(harness, "p")
        await check_all(harness)

    play(story, scheduler=False, **QUICK)


def test_a_new_leader_goes_on_watching_what_the_old_one_committed():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        await harness.add(kinds.POD, pod("p", claims=["a"]))
        first = harness.start(**QUICK)
        await until_on(harness, "a", "n0")
        await refuse(harness, "p")
        await harness.stop(first)
        harness.start(**QUICK)
        await harness.sleep(59)
        assert await node_in_claim(harness, "a") == "n0"
        await until_on(harness, "a", "n1")

    play(story, scheduler=False, controller=False)


def test_cpu_that_the_view_misses_on_the_chosen_node():
    """The embedded kube-scheduler counts; our view of the node is stale. The pod ends up on another node."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await harness.sleep(1)
        real = {"status": {"allocatable": {"cpu": "1"}}}
        harness.cluster.pause_watches()
        await harness.patch_node("n0", real, status=True)
        # the controller's own node watch stays silent: it hears of the node no more
        harness.controller.inventory.nodes.put = lambda node: harness.controller.inventory.nodes.index_of(
            node.metadata.name
        )
        harness.cluster.resume_watches()
        await harness.add(kinds.POD, pod("p", templates=["small"], cpu="2"))
        await harness.bound("p")
        assert await harness.node_of("p") == "n1"
        await check_all(harness)

    play(story, **QUICK)


def test_pods_with_our_gate_keep_their_place_however_long_they_are_gated():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"))
        harness.cluster.fail_next(Unavailable("no"), verb="patch", kind=kinds.POD, subresource="", times=20)
        await harness.add(kinds.POD, pod("p", claims=["a"], gated=True, annotations={names.NODE_POLICY: "binpack"}))
        await until_on(harness, "a", "n0")
        await harness.until(lambda: ungated(harness, "p"), seconds=3000)
        assert await node_in_claim(harness, "a") == "n0"
        assert await harness.events("AllocationUndone") == []

    play(story, scheduler=False, **QUICK)
