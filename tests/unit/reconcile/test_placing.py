"""What becomes of a pending pod: placed, waited for, let go, told why not."""

import pytest

from controller.decide import decide
from controller.reconcile.binding.claim_commit import ClaimCommitter
from controller.reconcile.queueing import PodAssessor
from hami_dra.api import kinds, names
from hami_dra.api.allocator import allocator_of
from tests.support.harness import FOREIGN, SPACE, claim, device_class, first_fit, gpu_slice, play, pod, template

QUICK = {"quiet_time": 0.0, "probe": False}
OURS = "nvidia.hami.io"


async def check_all(harness):
    await harness.check_never_overcommitted()
    await harness.check_bound_pods_have_their_claims()
    await harness.check_nothing_leaked()


@pytest.mark.parametrize("gated", [True, False])
def test_a_pod_with_a_template_is_placed_and_bound(gated):
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await harness.add(kinds.POD, pod("p", templates=["small"], gated=gated))
        await harness.bound("p")
        [held] = await harness.claims_of("p")
        assert held.metadata.finalizers == (names.DELETE_PROTECTION,)
        assert allocator_of(held.status.allocation) == "hami-dra"
        [result] = held.status.allocation.devices.results
        assert result.share_id
        assert held.status.allocation.allocation_timestamp
        await check_all(harness)
        [reported] = await harness.events("FilteringSucceed")
        assert reported["note"] == "find fit node(n0), 0 nodes not fit, 2 nodes fit(n0:0.00,n1:0.00)"
        await harness.delete_pod("p")
        await harness.plane.settled()
        assert await harness.claims() == []

    play(story, **QUICK)


def test_an_exclusive_device_gets_no_share_id():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p")
        [result] = (await harness.claim("c")).status.allocation.devices.results
        assert result.share_id is None
        assert result.consumed_capacity == {}

    play(story, node_options={"shared": False}, **QUICK)


def test_a_pod_may_come_before_its_claim_and_its_template():
    async def story(harness):
        await harness.add(kinds.POD, pod("p", templates=["late"], claims=["later"], gated=True))
        await harness.sleep(5)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("late"))
        await harness.sleep(1)
        assert names.GATE in [gate.name for gate in (await harness.pod("p")).spec.scheduling_gates]
        await harness.add(kinds.RESOURCE_CLAIM, claim("later"))
        await harness.bound("p")
        await check_all(harness)

    play(story, **QUICK)


def test_two_claims_of_a_pod_are_allocated_together_on_one_node():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", 12))
        await harness.add(kinds.POD, pod("p", templates=["big", "big"]), pod("q", templates=["big", "big"]))
        await harness.bound("p", "q")
        assert {await harness.node_of("p"), await harness.node_of("q")} == {"n0", "n1"}
        await check_all(harness)

    play(story, **QUICK)


@pytest.mark.parametrize("decider", [first_fit, decide], ids=["stand-in", "real"])
def test_pods_that_share_a_claim_are_placed_where_all_known_ones_fit(decider):
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        # n0 has room for one of them, n1 for both
        await harness.patch_node("n0", {"status": {"allocatable": {"cpu": "3"}}}, status=True)
        pods = [pod(name, claims=["c"], cpu="2", gated=True) for name in ("p", "q")]
        await harness.add(kinds.POD, *pods)
        harness.start(decide=decider, **QUICK)
        await harness.bound("p", "q")
        assert await harness.node_of("p") == await harness.node_of("q") == "n1"
        assert len((await harness.claim("c")).status.reserved_for) == 2
        await check_all(harness)

    play(story, controller=False)


def test_no_claim_is_placed_where_a_device_plugin_still_hands_out_the_cards():
    """By the drivers that the claim's devices can be of: nobody said that this pod stands for nvidia.com/gpu."""

    async def story(harness):
        plugin = {"status": {"allocatable": {"nvidia.com/gpu": "4"}}}
        await harness.patch_node("n0", plugin, status=True)
        await harness.patch_node("n1", {"status": {"allocatable": {"metax-tech.com/gpu": "4"}}}, status=True)
        harness.start(decide=decide, managed=frozenset({OURS}), **QUICK)
        await harness.add(kinds.DEVICE_CLASS, device_class("ours", OURS))
        await harness.add(kinds.RESOURCE_CLAIM, *(claim(name, device_class="ours") for name in ("c", "d")))
        await harness.add(kinds.POD, pod("p", claims=["c"]))
        await harness.bound("p")
        assert await harness.node_of("p") == "n1"
        await harness.patch_node("n1", plugin, status=True)
        await harness.add(kinds.POD, pod("q", claims=["d"]))
        await harness.sleep(1)
        [event] = await harness.events("FilteringFailed")
        assert event["note"] == (
            "no node fits now: on n0: a device plugin hands out the same devices there; 1 other node with such devices is "
            "refused as well (n1). Run: hami-dra explain q -n default [2 nodes NodeOffersDevicePlugin]"
        )
        await harness.patch_node("n0", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}, status=True)
        await harness.bound("q")
        assert await harness.node_of("q") == "n0"
        await check_all(harness)

    play(story, controller=False, node_options={"driver": OURS})


def test_a_pod_whose_claims_are_all_foreign_loses_its_gate_at_once_and_is_left_alone():
    async def story(harness):
        await harness.add(kinds.RESOURCE_SLICE, gpu_slice("n0", driver=FOREIGN))
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", device_class="foreign"))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await harness.sleep(0.5)
        assert (await harness.pod("p")).spec.scheduling_gates == ()
        left = await harness.claim("c")
        assert left.metadata.finalizers == ()
        assert left.status.allocation is None

    play(story, quiet_time=10.0)  # not even the fence is waited for


def test_a_pod_without_claims_loses_a_gate_that_it_should_not_have():
    async def story(harness):
        await harness.add(kinds.POD, pod("p", gated=True))
        await harness.bound("p", seconds=1)

    play(story, quiet_time=10.0)


def test_foreign_claims_beside_managed_ones_are_left_to_kube_scheduler():
    async def story(harness):
        await harness.add(kinds.RESOURCE_SLICE, gpu_slice("n1", driver=FOREIGN))
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours"), claim("theirs", device_class="foreign"))
        await harness.add(kinds.POD, pod("p", claims=["ours", "theirs"], gated=True))
        await harness.sleep(1)
        ours, theirs = await harness.claim("ours"), await harness.claim("theirs")
        assert ours.status.allocation.node_selector.node_selector_terms[0].match_fields[0].values == ("n1",)
        assert theirs.status.allocation is None
        assert theirs.metadata.finalizers == ()
        assert (await harness.pod("p")).spec.scheduling_gates == ()

    play(story, **QUICK)


def test_nothing_is_decided_while_another_gate_is_there():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(
            kinds.POD, pod("p", claims=["c"], gated=True, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
        )
        await harness.sleep(60)
        assert (await harness.claim("c")).status.allocation is None
        assert len((await harness.pod("p")).spec.scheduling_gates) == 2
        left = (await harness.cluster.get_raw(kinds.POD, "p", SPACE))["spec"]["schedulingGates"][1:]
        await harness.cluster.patch(kinds.POD, "p", {"spec": {"schedulingGates": left}}, namespace=SPACE)
        await harness.bound("p")

    play(story, **QUICK)


def test_only_our_gate_is_removed():
    async def story(harness):
        other = {"name": "example.com/other"}
        await harness.add(kinds.POD, pod("p", gated=True, schedulingGates=[other]))
        await harness.sleep(1)
        assert [gate.name for gate in (await harness.pod("p")).spec.scheduling_gates] == ["example.com/other"]

    play(story, **QUICK)


def test_pods_of_other_schedulers_are_left_alone():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"], schedulerName="volcano"))
        await harness.sleep(30)
        assert (await harness.claim("c")).status.allocation is None

    play(story, **QUICK)


def test_a_pod_with_a_preset_node_gets_its_devices_there():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"], nodeName="n1"))
        await harness.until(lambda: _allocated(harness, "c"))
        await check_all(harness)

    play(story, **QUICK)


def test_a_preset_node_without_room_is_told():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", 99))
        await harness.add(kinds.POD, pod("p", claims=["c"], nodeName="n1"))
        await harness.sleep(1)
        notes = [event["note"] for event in await harness.events("FilteringFailed")]
        assert notes == ["no available node, 2 nodes do not meet. Run: hami-dra explain p -n default"]

    play(story, **QUICK)


async def _allocated(harness, name):
    return (await harness.claim(name)).status.allocation is not None


def test_an_unknown_policy_is_reported_with_its_choices_and_can_be_corrected():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c"))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True, annotations={names.NODE_POLICY: "tight"}))
        await harness.sleep(1)
        [event] = await harness.events("InvalidPolicy")
        assert "'tight' is not one of binpack, spread, fair-share" in event["note"]
        patch = {"metadata": {"annotations": {names.NODE_POLICY: "spread"}}}
        await harness.cluster.patch(kinds.POD, "p", patch, namespace=SPACE)
        await harness.bound("p")

    play(story, **QUICK)


def test_a_generated_claim_of_another_pod_is_not_used():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("stray"))
        await harness.add(kinds.POD, pod("p", templates=["gone"]))
        status = {"status": {"resourceClaimStatuses": [{"name": "t0", "resourceClaimName": "stray"}]}}
        await harness.cluster.patch(kinds.POD, "p", status, namespace=SPACE, subresource="status")
        harness.start(**QUICK)
        await harness.sleep(1)
        [event] = await harness.events("InvalidClaim")
        assert "was not made for this pod" in event["note"]
        assert (await harness.claim("stray")).status.allocation is None

    play(story, controller=False)


def using(body, *containers):
    """The pod with a container for each list of claims, by their names in the pod."""
    body["spec"]["containers"] = [
        {"name": f"c{number}", "image": "none", "resources": {"claims": [{"name": name} for name in used]}}
        for number, used in enumerate(containers)
    ]
    return body


def test_a_container_does_not_use_a_claim_that_others_may_join_together_with_another():
    """The driver would refuse it on the node: a pod that joins the claim is given what this container got."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"), claim("c"), claim("d"))
        await harness.add(kinds.POD, using(pod("both", claims=["a", "b"]), ["c0", "c1"]))
        await harness.sleep(1)
        [event] = await harness.events("InvalidClaim")
        assert event["note"] == (
            "spec.containers[c0].resources.claims: uses claim c0, which other pods may join, together with c1, and such a pod would be "
            "given the devices of both: put the requests of this container into one claim, or use ResourceClaimTemplates"
        )
        assert (await harness.claim("a")).status.allocation is None
        await harness.add(kinds.POD, using(pod("apart", claims=["c", "d"]), ["c0"], ["c1"]))
        await harness.bound("apart")

    play(story, **QUICK)


def test_generated_claims_of_one_container_are_used_together():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("a"), template("b"))
        await harness.add(kinds.POD, using(pod("both", templates=["a", "b"]), ["t0", "t1"]))
        await harness.bound("both")

    play(story, **QUICK)


def test_a_managed_claim_and_one_of_another_driver_are_used_together():
    async def story(harness):
        await harness.add(kinds.RESOURCE_SLICE, gpu_slice("n1", driver=FOREIGN))
        await harness.add(kinds.RESOURCE_CLAIM, claim("ours"), claim("theirs", device_class="foreign"))
        await harness.add(kinds.POD, using(pod("p", claims=["ours", "theirs"]), ["c0", "c1"]))
        await harness.sleep(1)
        assert (await harness.claim("ours")).status.allocation is not None

    play(story, **QUICK)


# --- no room -------------------------------------------------------------------------------------------------------------


def test_the_gate_stays_for_ten_seconds_without_room_and_then_goes():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", 99))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await harness.sleep(9)
        assert (await harness.pod("p")).spec.scheduling_gates
        await harness.sleep(2)
        found = await harness.pod("p")
        assert found.spec.scheduling_gates == ()
        assert found.status.conditions[0].reason == "Unschedulable"
        notes = {event["note"] for event in await harness.events("FilteringFailed")}
        assert notes == {"no available node, 2 nodes do not meet. Run: hami-dra explain p -n default"}

    play(story, **QUICK)


def test_an_ungated_pod_without_room_is_allocated_when_room_is_made():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("all", 16, count=2))
        await harness.add(kinds.POD, pod("holder", templates=["all"]))
        await harness.bound("holder")
        await harness.add(kinds.POD, pod("p", templates=["all"], gated=True))
        await harness.sleep(30)
        assert not await harness.node_of("p")
        await harness.delete_pod("holder")
        await harness.bound("p", seconds=2)
        await check_all(harness)

    play(story, nodes=1, **QUICK)


def test_new_devices_and_changed_nodes_make_room():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", 16))
        await harness.patch_node("n0", {"spec": {"unschedulable": True}})
        await harness.add(kinds.POD, *(pod(f"p{number}", templates=["big"]) for number in range(4)))
        await harness.sleep(5)
        assert not any([await harness.node_of(f"p{number}") for number in range(4)])
        await harness.patch_node("n0", {"spec": {"unschedulable": False}})
        await harness.bound("p0", "p1", seconds=2)
        await harness.add_node("n1")
        await harness.bound("p2", "p3", seconds=2)
        await check_all(harness)

    play(story, nodes=1, **QUICK)


def test_priority_then_age_decide_who_gets_the_room():
    async def story(harness):
        await harness.add(
            kinds.PRIORITY_CLASS,
            {"metadata": {"name": "high"}, "value": 1000},
        )
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("all", 16, count=2))
        await harness.add(kinds.POD, pod("first", templates=["all"]))
        await harness.sleep(1)
        await harness.add(
            kinds.POD, pod("second", templates=["all"]), pod("urgent", templates=["all"], priorityClassName="high")
        )
        harness.start(**QUICK)
        await harness.bound("urgent", seconds=5)
        await harness.delete_pod("urgent")
        await harness.bound("first", seconds=5)
        assert not await harness.node_of("second")

    play(story, nodes=1, controller=False)


def test_equal_pods_without_room_cost_one_decision_per_event():
    async def story(harness):
        decided = []

        def counting(inventory, request, options):
            decided.append(request.pod.key)
            return first_fit(inventory, request, options)

        harness.start(decide=counting, **QUICK)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("big", 99))
        await harness.add(kinds.POD, *(pod(f"p{number:02}", templates=["big"]) for number in range(30)))
        await harness.sleep(2)
        decided.clear()
        await harness.add_node("n7")
        await harness.sleep(2)
        assert 1 <= len(decided) <= 3
        assert len(await harness.events("FilteringFailed")) >= 30  # but everybody was told

    play(story, controller=False)


# --- bad luck ------------------------------------------------------------------------------------------------------------


def test_a_decision_that_fails_badly_does_not_stop_the_others():
    async def story(harness):
        def fragile(inventory, request, options):
            if request.pod.metadata.name == "cursed":
                raise ZeroDivisionError("bad luck")
            return first_fit(inventory, request, options)

        harness.start(decide=fragile, **QUICK)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small"))
        await harness.add(kinds.POD, pod("cursed", templates=["small"]), pod("fine", templates=["small"]))
        await harness.bound("fine", seconds=5)
        [event] = await harness.events("FilteringFailed")
        assert "internal error" in event["note"]

    play(story, controller=False)


def test_with_the_gate_off_gates_go_at_once():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("c", 99))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await harness.sleep(0.5)
        assert (await harness.pod("p")).spec.scheduling_gates == ()

    play(story, gate=False, **QUICK)


def test_many_pods_are_committed_side_by_side(monkeypatch):
    running, most = 0, 0
    original = ClaimCommitter.commit

    async def counted(self, pod, decision):
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await original(self, pod, decision)
        finally:
            running -= 1

    monkeypatch.setattr(ClaimCommitter, "commit", counted)

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("small", 1))
        await harness.add(kinds.POD, *(pod(f"p{number:02}", templates=["small"], gated=True) for number in range(40)))
        harness.start(commits_at_once=8, **QUICK)
        await harness.bound(*(f"p{number:02}" for number in range(40)))
        await check_all(harness)

    play(story, controller=False)
    assert 2 <= most <= 8


def test_a_pod_that_has_its_devices_is_not_assessed_again(monkeypatch):
    """Neither when its gate is removed and it is bound, nor by the next leader, which would assess all pods that run."""
    assessed, assess = [], PodAssessor.assess

    def counted(self, found, now):
        assessed.append((found.key, bool(found.spec.scheduling_gates)))
        return assess(self, found, now)

    monkeypatch.setattr(PodAssessor, "assess", counted)

    async def story(harness):
        leading = harness.start(**QUICK)
        await harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template("t"))
        await harness.add(kinds.POD, *[pod(f"p{number}", templates=["t"], gated=True) for number in range(3)])
        await harness.bound("p0", "p1", "p2")
        await harness.sleep(10)
        assert {key for key, _ in assessed} == {"default/p0", "default/p1", "default/p2"}
        assert all(gated for _, gated in assessed)
        assessed.clear()
        await harness.stop(leading)
        harness.start(**QUICK)
        await harness.sleep(30)
        assert assessed == []
        await harness.add(kinds.POD, pod("p3", templates=["t"], gated=True))
        await harness.bound("p3")

    play(story, controller=False)
