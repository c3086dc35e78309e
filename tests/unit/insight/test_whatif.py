"""What a change would do, by hand on small clusters: n1 has four T4 (15 GiB), n2 four A10G (22 GiB)."""

import pytest

from controller.insight.simulation import SimulationSettings, simulate
from controller.insight.whatif import DEVICE_AXIS, NODE_AXIS, BadChange, Change, compare
from controller.scoring.policies import DevicePolicy, Policies
from controller.views.comparison import Eviction, Move, Placement
from hami_dra.api import names
from tests.support.manifests import claim, cluster, documents, part, pod, template, workload
from tests.support.quotas import guarantee

BINPACK = SimulationSettings(policies=Policies(device_policy=DevicePolicy((names.BINPACK,))))
SPREAD_NODES = SimulationSettings(policies=Policies(node_policy=names.SPREAD))
SHARE = part()


def held(name, node, device, memory="7500Mi", *, created="", owner="", **more):
    """A pod that runs, and its claim."""
    result = {"request": "gpu", "driver": "nvidia.hami.io", "pool": node, "device": device, "shareID": name}
    consumed = {"memory": memory, "cores": "0", "shares": "1"}
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {
        "devices": {"results": [{**result, "consumedCapacity": consumed}]},
        "nodeSelector": {"nodeSelectorTerms": [pinned]},
    }
    reserved = [{"resource": "pods", "name": name, "uid": name}]
    the_claim = {**claim(name, part(memory)), "status": {"allocation": allocation, "reservedFor": reserved}}
    running = pod(name, name, nodeName=node, **more)
    running["metadata"]["uid"] = name
    running["status"] = {"phase": "Running"}
    if created:
        running["metadata"]["creationTimestamp"] = created
    if owner:
        running["metadata"]["ownerReferences"] = [{"kind": owner, "name": "o", "controller": True}]
    return [the_claim, running]


def whatif(*raws, **change):
    return compare(documents(*raws), Change(**change))


def nodes(placements):
    return {each.pod.removeprefix("default/"): each.node for each in placements}


def ids(node, *devices):
    return tuple(f"nvidia.hami.io/{node}/{device}" for device in devices)


SCATTERED = [
    *cluster("n1", "n2"),
    *held("a", "n1", "gpu-0", created="2026-01-01T00:00:01Z"),
    *held("b", "n1", "gpu-1", created="2026-01-01T00:00:02Z"),
    *held("c", "n2", "gpu-0", created="2026-01-01T00:00:03Z"),
]


def test_packing_anew_frees_cards_and_a_node():
    found = whatif(*SCATTERED, settings=BINPACK, policies=((DEVICE_AXIS, "binpack"),), replace=True)
    assert nodes(found.before) == {"a": "n1", "b": "n1", "c": "n2"}
    assert nodes(found.after) == {"a": "n1", "b": "n1", "c": "n1"}
    assert [each.pod for each in found.moved] == ["default/b", "default/c"]
    assert found.moved[0] == Move(
        pod="default/b", from_node="n1", from_devices=ids("n1", "gpu-1"), to_node="n1", to_devices=ids("n1", "gpu-0")
    )
    assert found.freed_cards == ids("n2", "gpu-0")
    assert found.taken_cards == ()
    assert (found.held_before, found.held_after, found.cards_before, found.cards_after) == (3, 2, 8, 8)
    assert found.emptied_nodes == ("n2",)
    assert found.conclusion == (
        "Device policy binpack and placing all pods again would free 1 of 8 devices and empty node n2, moving 2 pods."
    )
    (n1, n2) = found.nodes
    assert (n1.pods_before, n1.pods_after, n2.pods_before, n2.pods_after) == (2, 3, 1, 0)
    assert (n2.before.free_cards, n2.after.free_cards) == (3, 4)
    (nvidia,) = found.vendors
    assert (nvidia.before.partly_used_cards, nvidia.after.empty_nodes) == (3, 1)


def test_what_runs_stays_without_replace():
    found = whatif(*SCATTERED, settings=BINPACK, policies=((DEVICE_AXIS, "binpack"),))
    assert found.before == found.after
    assert found.moved == ()
    assert "change nothing" in found.conclusion
    assert "--replace" in found.conclusion


def test_pods_that_wait_are_placed_with_and_without_the_change():
    waiting = [claim("w"), pod("w", "w")]
    found = whatif(*SCATTERED, *waiting, settings=SPREAD_NODES, policies=((NODE_AXIS, "spread"),))
    assert (nodes(found.before)["w"], nodes(found.after)["w"]) == ("n1", "n2")
    assert [each.pod for each in found.moved] == ["default/w"]
    (w,) = [each for each in found.before if each.pod == "default/w"]
    assert not w.running


def test_more_pods():
    found = whatif(
        *SCATTERED, additions=tuple(documents(claim("x"), pod("x", "x"), pod("y", "z"), workload("Job", "j")))
    )
    assert found.placed == (Placement(pod="default/x", node="n1", devices=ids("n1", "gpu-2"), running=False),)
    assert found.taken_cards == ids("n1", "gpu-2")
    (y,) = found.unplaced
    assert (y.pod, y.new, y.was_on) == ("default/y", True, "")
    assert "does not exist" in y.error
    assert found.lost == (y,)


def test_a_pod_that_is_there_cannot_be_added():
    with pytest.raises(BadChange, match=r"in\.yaml, document 1: Pod default/a is there already; give it another name"):
        whatif(*SCATTERED, additions=tuple(documents(pod("a", "x"))))


def test_a_node_less():
    daemon = held("agent", "n1", "gpu-3", owner="DaemonSet")
    found = whatif(*SCATTERED, *daemon, without_nodes=("n1",))
    assert nodes(found.after) == {"a": "n2", "b": "n2", "c": "n2"}
    assert found.gone == ("default/agent",)
    assert found.freed_cards == ()  # cards that are away are not freed
    assert found.taken_cards == ids("n2", "gpu-1", "gpu-2")
    assert (found.cards_before, found.cards_after) == (8, 4)
    assert found.emptied_nodes == ()
    assert [(each.node, each.after is None) for each in found.nodes] == [("n1", True), ("n2", False)]
    assert found.conclusion == (
        "Losing node n1 would take 2 more of 4 devices, moving 2 pods; 1 pod would go with the node."
    )


def test_pods_that_would_not_fit_are_told_with_their_reasons():
    large = [*held("large-0", "n2", "gpu-0", "20Gi"), *held("large-1", "n2", "gpu-1", "20Gi")]
    found = whatif(*cluster("n1", "n2"), *large, without_nodes=("n2",))
    assert [(each.pod, each.was_on, each.new) for each in found.unplaced] == [
        ("default/large-0", "n2", False),
        ("default/large-1", "n2", False),
    ]
    assert found.unplaced[0].reasons == {"CardInsufficientMemory": 4}
    assert found.conclusion.endswith(
        "2 pods would not fit: default/large-0 and default/large-1 "
        "(no node fits: needs 20480 MiB on one device; the largest has 15360 MiB (Tesla T4), so it never will)."
    )


def test_who_has_no_place_either_way_is_not_the_change_s_fault():
    large = [claim("w", part("90Gi")), pod("w", "w")]
    found = whatif(*SCATTERED, *large, settings=BINPACK, policies=((DEVICE_AXIS, "binpack"),), replace=True)
    assert found.lost == ()
    assert len(found.unplaced) == 1
    assert found.conclusion.endswith("; 1 pod has no place either way.")


def test_pods_without_devices_and_pods_on_their_way_out_stay():
    leaving = held("leaving", "n2", "gpu-1")
    leaving[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    other = pod("other", nodeName="n2", limits={"cpu": "1"})
    found = whatif(*SCATTERED, *leaving, other, settings=BINPACK, policies=((DEVICE_AXIS, "binpack"),), replace=True)
    assert "nvidia.hami.io/n2/gpu-1" not in found.freed_cards
    assert nodes(found.after)["leaving"] == "n2"
    assert "default/other" not in {each.pod for each in found.after}


def test_a_shared_claim_moves_when_all_who_use_it_move():
    shared = held("a", "n2", "gpu-3")
    second = pod("b", "a", nodeName="n2")
    together = whatif(*cluster("n1", "n2"), *shared, second, replace=True)
    assert nodes(together.after) == {"a": "n1", "b": "n1"}
    assert together.freed_cards == ids("n2", "gpu-3")
    second["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kept = whatif(*cluster("n1", "n2"), *shared, second, replace=True)
    assert nodes(kept.after) == {"a": "n2", "b": "n2"}


def test_who_is_leaving_a_node_that_goes_holds_nobody_back():
    shared = held("a", "n2", "gpu-3")
    leaving = pod("b", "a", nodeName="n2")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = whatif(*cluster("n1", "n2"), *shared, leaving, without_nodes=("n2",))
    assert nodes(found.after) == {"a": "n1"}
    assert found.unplaced == ()


def test_what_kube_scheduler_served_by_a_claim_of_its_own_stays():
    special = held("a", "n2", "gpu-3")
    special[1]["spec"]["resourceClaims"] = []
    special[1]["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "a"}
    found = whatif(*cluster("n1", "n2"), *special, replace=True)
    assert nodes(found.before) == nodes(found.after) == {"a": "n2"}
    assert found.freed_cards == ()


def test_an_allocation_that_is_not_bound_yet_is_placed_anew_too():
    unbound = held("a", "n2", "gpu-3")
    del unbound[1]["spec"]["nodeName"]
    assert whatif(*cluster("n1", "n2"), *unbound, replace=True).freed_cards == ids("n2", "gpu-3")
    assert nodes(whatif(*cluster("n1", "n2"), *unbound, without_nodes=("n2",)).after) == {"a": "n1"}
    assert nodes(whatif(*cluster("n1", "n2"), *unbound, without_nodes=("n1",)).after) == {"a": "n2"}


def test_pods_are_placed_anew_in_the_order_in_which_they_were_created():
    late = held("late", "n1", "gpu-0", "14Gi", created="2026-01-01T00:00:02Z")
    early = held("early", "n1", "gpu-1", "14Gi", created="2026-01-01T00:00:01Z")
    found = whatif(*cluster("n1"), *late, *early, replace=True)
    assert {each.pod: each.to_devices for each in found.moved} == {
        "default/early": ids("n1", "gpu-0"),
        "default/late": ids("n1", "gpu-1"),
    }


ANNOTATED = [
    *cluster("n1", "n2"),
    *held("a", "n1", "gpu-0", annotations={names.NODE_POLICY: "binpack"}),
    *held("b", "n1", "gpu-1", annotations={names.NODE_POLICY: "binpack"}),
]


def test_annotations_win_unless_they_are_overridden():
    asked = {"settings": SPREAD_NODES, "policies": ((NODE_AXIS, "spread"),), "replace": True}
    kept = whatif(*ANNOTATED, **asked)
    assert set(nodes(kept.after).values()) == {"n1"}
    (note,) = kept.notes
    assert note == (
        "2 objects with another policy by annotation keep it; "
        "with --override-annotations the policy applies to them too"
    )
    assert (
        whatif(*ANNOTATED, settings=SPREAD_NODES, policies=((NODE_AXIS, "spread"),)).notes == ()
    )  # nothing is decided
    overridden = whatif(*ANNOTATED, **asked, override=True)
    assert set(nodes(overridden.after).values()) == {"n1", "n2"}
    assert overridden.filled_nodes == ("n2",)
    assert overridden.notes == ()


def test_annotations_of_templates_and_workloads_are_overridden_too():
    annotated = {"annotations": {names.NODE_POLICY: "binpack"}}
    deployment = workload(
        "Deployment",
        "d",
        {
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "c0", "resourceClaimTemplateName": "t"}],
        },
        replicas=2,
    )
    deployment["spec"]["template"]["metadata"] = annotated
    from_template = template("t", SHARE, **annotated)
    asked = {"settings": SPREAD_NODES, "policies": ((NODE_AXIS, "spread"),)}
    raws = (*cluster("n1", "n2"), from_template, deployment)
    assert set(nodes(whatif(*raws, **asked).after).values()) == {"n1"}
    assert set(nodes(whatif(*raws, **asked, override=True).after).values()) == {"n1", "n2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "the change is empty"),
        ({"without_nodes": ("n9",)}, "without node n9: there is no such node; there are n1, n2"),
    ],
)
def test_changes_that_cannot_be(change, message):
    with pytest.raises(BadChange, match=message):
        whatif(*SCATTERED, **change)


def test_progress_is_told_for_both():
    reported = []
    compare(
        documents(*SCATTERED),
        Change(replace=True),
        lambda *news: reported.append(news),
    )
    assert list(dict.fromkeys(reported)) == [("with the change", number, 3) for number in range(4)]


def test_a_pod_of_a_scheduler_that_is_not_served_stays_where_it_is():
    running = held("a", "n2", "gpu-0", schedulerName="volcano")
    found = whatif(*cluster("n1", "n2"), *running, settings=BINPACK, replace=True)
    assert nodes(found.after) == {"a": "n2"}


FULL = [
    *cluster("n1"),
    *(raw for number in range(4) for raw in held(f"low-{number}", "n1", f"gpu-{number}", "15Gi", priority=number)),
]
URGENT = [claim("u", part("15Gi")), pod("urgent", "u", priority=100)]


def test_preemption_for_a_pod_names_who_would_go_and_leaves_the_others_waiting():
    found = whatif(
        *FULL, *URGENT, claim("o", part("15Gi")), pod("other", "o", priority=200), preemptors=("default/urgent",)
    )
    assert found.evicted == (Eviction(pod="default/low-0", node="n1", preemptor="default/urgent"),)
    assert nodes(found.placed) == {"urgent": "n1"}
    assert [each.pod for each in found.unplaced] == ["default/other"]
    assert found.conclusion == (
        "Preemption for pod default/urgent would free no device, placing 1 more pod; pod default/low-0 would be evicted; "
        "1 pod has no place either way."
    )


def test_preemption_for_a_pod_that_is_added():
    added = documents(*URGENT)
    found = whatif(*FULL, additions=tuple(added), preemptors=("default/urgent",))
    assert [each.pod for each in found.evicted] == ["default/low-0"]


def test_preemption_for_a_pod_that_needs_none_or_that_it_does_not_help():
    found = whatif(*cluster("n1"), *URGENT, preemptors=("default/urgent",))
    assert found.conclusion == "Preemption for pod default/urgent would change nothing."
    equal = [claim("u", part("15Gi")), pod("urgent", "u", priority=0)]
    found = whatif(*FULL, *equal, preemptors=("default/urgent",))
    assert "preemption does not help: no node fits even without the pods of lower priority" in found.unplaced[0].message


def test_preemption_by_guarantee():
    """A pod of a namespace that is owed two cards, and tenants of a higher priority that have run for an hour."""
    tenants = [raw for number in range(4) for raw in held(f"rich-{number}", "n1", f"gpu-{number}", "15Gi", priority=9)]
    for raw in tenants:
        if raw["kind"] == "Pod":
            raw["status"]["startTime"] = f"2026-01-01T00:00:0{raw['metadata']['name'][-1]}Z"
    asks = pod("asks", "u", namespace="poor", priority=0)
    asks["metadata"]["creationTimestamp"] = "2026-01-01T01:00:00Z"
    raws = [*cluster("n1"), *tenants, claim("u", part("15Gi"), namespace="poor"), asks]
    owed = guarantee({"nvidia.com/gpu": 2}, namespace="poor")
    found = whatif(*raws, owed, preemptors=("poor/asks",))
    assert found.evicted == (Eviction(pod="default/rich-3", node="n1", preemptor="poor/asks"),)
    assert whatif(*raws, preemptors=("poor/asks",)).evicted == ()
    report = simulate(documents(*raws, owed), SimulationSettings(preemption=True))
    (entry,) = report.document()["preemptions"]
    assert (entry["pod"], entry["victims"]) == ("poor/asks", ["default/rich-3"])
    (own,) = entry["reclaims"]
    assert own == {
        "namespace": "poor",
        "quota": "",
        "resource": "limits.nvidia.com/gpu",
        "unit": "devices",
        "used": 0,
        "hard": 2,
        "kind": "guarantee",
    }


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("default/low-0", "it waits for no node (it is on n1)"),
        ("default/urgnt", "no pod of this name waits; did you mean default/urgent?"),
    ],
)
def test_preemption_for_a_pod_that_does_not_wait(name, problem):
    with pytest.raises(BadChange) as caught:
        whatif(*FULL, *URGENT, preemptors=(name,))
    assert str(caught.value) == f"preemption for pod {name}: {problem}"
