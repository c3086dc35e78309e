"""What a simulation decides: order, policies, what counts as in use, claims that are shared, generated or there already."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from controller.scoring.policies import DevicePolicy, Policies
from tests.support.manifests import (
    claim,
    cluster,
    device_class,
    node,
    part,
    pod,
    simulated,
    slices,
    template,
)

NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
LEGACY = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 7500}


def places(report):
    """Pod → (node, devices)."""
    return {
        entry["pod"].removeprefix("default/"): (
            entry["node"],
            [result["device"] for each in entry["claims"] for result in each["allocation"]["devices"]["results"]],
        )
        for entry in report.placements
    }


def refusal(report):
    (entry,) = report.unplaced
    return entry


def allocation(node_name, *devices, memory="7500Mi", **more):
    results = [
        {
            "request": "gpu",
            "driver": "nvidia.hami.io",
            "pool": node_name,
            "device": device,
            "shareID": "0e4b3e1c-0000-4000-8000-000000000000",
            "consumedCapacity": {"memory": memory, "cores": "0", "shares": "1"},
        }
        for device in devices
    ]
    return {"devices": {"results": results}, **more}


def allocated(name, node_name, *devices, selector=True, **more):
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}]
    pinned = {"nodeSelector": {"nodeSelectorTerms": terms}} if selector else {}
    return {**claim(name), "status": {"allocation": {**allocation(node_name, *devices, **more), **pinned}}}


@pytest.mark.parametrize(
    ("node_policy", "device_policy", "expected"),
    [
        ("binpack", "binpack", {("n1", "gpu-0"): 2, ("n1", "gpu-1"): 2}),
        ("spread", "binpack", {("n1", "gpu-0"): 2, ("n2", "gpu-0"): 2}),
        ("binpack", "spread", {("n1", f"gpu-{index}"): 1 for index in range(4)}),
        ("spread", "spread", {(name, f"gpu-{index}"): 1 for name in ("n1", "n2") for index in range(2)}),
    ],
)
@pytest.mark.parametrize("form", ["claims", "legacy", "class", "option"])
def test_the_four_patterns_in_every_form(form, node_policy, device_policy, expected):
    chosen = {NODE_POLICY: node_policy, DEVICE_POLICY: device_policy}
    settings = {}
    own = device_class("own", annotations=chosen)
    if form == "legacy":
        pods = [pod(f"p{number}", annotations=chosen, limits=LEGACY) for number in range(4)]
    elif form == "class":
        pods = [template("t", part(class_name="own")), *(pod(f"p{number}", "template:t") for number in range(4))]
    elif form == "option":
        pods = [template("t"), *(pod(f"p{number}", "template:t") for number in range(4))]
        settings["policies"] = Policies(node_policy=node_policy, device_policy=DevicePolicy((device_policy,)))
    else:
        pods = [template("t"), *(pod(f"p{number}", "template:t", annotations=chosen) for number in range(4))]
    report = simulated(cluster(), own, pods, **settings)
    assert report.unplaced == []
    assert Counter((found, device) for found, (device,) in places(report).values()) == expected


def test_annotations_are_above_the_options_and_first_fit_is_above_all():
    spreading = [pod(f"p{number}", "template:t", annotations={DEVICE_POLICY: "spread"}) for number in range(2)]
    packed = Policies(device_policy=DevicePolicy(("binpack",)))
    found = places(simulated(cluster("n1"), template("t"), spreading, policies=packed))
    assert [devices for _, devices in found.values()] == [["gpu-0"], ["gpu-1"]]
    found = places(simulated(cluster("n1"), template("t"), spreading, first_fit=True))
    assert [devices for _, devices in found.values()] == [["gpu-0"], ["gpu-0"]]


def test_first_fit_knows_no_vendor_rules():
    pods = [pod("shares", "template:part"), pod("all-cores", "template:all")]
    given = [cluster("n1"), template("part"), template("all", part(cores="100")), pods]
    packed = Policies(device_policy=DevicePolicy(("binpack",)))
    assert places(simulated(*given, policies=packed)) == {"shares": ("n1", ["gpu-0"]), "all-cores": ("n1", ["gpu-1"])}
    assert places(simulated(*given, first_fit=True))["all-cores"] == ("n1", ["gpu-0"])


def test_pods_are_placed_in_file_order_whatever_their_priority():
    pods = [pod("low", "template:t"), pod("high", "template:t", priority=1000)]
    report = simulated(pods, cluster("n1"), template("t", part(memory="15Gi", count=4)))
    assert list(places(report)) == ["low"]
    assert refusal(report)["reasons"] == {"CardInsufficientMemory": 4}


def test_running_pods_and_allocated_claims_count_whatever_else_is_said_of_them():
    """A class that is not there, no owner, no node selector, nobody who uses it."""
    taken = [allocated(f"taken-{number}", "n1", f"gpu-{number}", selector=False) for number in range(4)]
    taken[0]["spec"] = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gone"}}]}}
    taken[1]["spec"] = {}
    running = pod("running", nodeName="n2", limits={"cpu": "8"})
    waiting = pod("waiting", "template:t", limits={"cpu": "1"})
    report = simulated(cluster(), taken, running, template("t", part(memory="8000Mi")), waiting)
    assert refusal(report)["reasons"] == {"CardInsufficientMemory": 4, "NodeInsufficientResources": 1}
    running["status"] = {"phase": "Succeeded"}
    report = simulated(cluster(), taken, running, template("t", part(memory="8000Mi")), waiting)
    assert places(report) == {"waiting": ("n2", ["gpu-0"])}


def test_usage_by_a_claim_that_holds_a_whole_card():
    whole = {**claim("whole"), "status": {"allocation": {"devices": {"results": []}}}}
    whole["status"]["allocation"]["devices"]["results"] = [
        {"driver": "nvidia.hami.io", "pool": "n1", "device": f"gpu-{number}"} for number in range(3)
    ]
    report = simulated(cluster("n1"), whole, template("t"), pod("p", "template:t"))
    assert places(report) == {"p": ("n1", ["gpu-3"])}


def test_a_pod_without_claims_is_placed_too():
    report = simulated(cluster("n1"), pod("plain", limits={"cpu": "1"}))
    assert report.placements == [
        {"pod": "default/plain", "node": "n1", "claims": [], "score": {"node": 0.0, "devices": []}}
    ]


def test_claims_come_in_the_order_of_the_pod_those_that_are_allocated_included():
    there = allocated("there", "n2", "gpu-3", memory="1073741824")
    report = simulated(cluster(), there, template("t"), claim("own"), pod("p", "template:t", "there", "own"))
    (placement,) = report.placements
    assert placement["node"] == "n2"
    assert [(entry["podClaimName"], entry["name"], entry["namespace"]) for entry in placement["claims"]] == [
        ("c0", "p-c0", "default"),
        ("c1", "there", "default"),
        ("c2", "own", "default"),
    ]
    shown = placement["claims"][1]["allocation"]
    assert shown == allocation("n2", "gpu-3", memory="1073741824") | {
        "nodeSelector": there["status"]["allocation"]["nodeSelector"]
    }


def test_quantities_are_written_as_kubernetes_writes_them():
    there = allocated("there", "n1", "gpu-3", memory=1 << 30, selector=False)
    given = part(memory="0.5Gi", cores="1e1")
    report = simulated(cluster("n1"), there, template("t", given), pod("p", "template:t", "there"))
    amounts = [
        result["consumedCapacity"]
        for entry in report.placements[0]["claims"]
        for result in entry["allocation"]["devices"]["results"]
    ]
    assert amounts == [
        {"memory": "512Mi", "cores": "10", "shares": "1"},
        {"memory": "1073741824", "cores": "0", "shares": "1"},
    ]


def test_an_allocation_is_stamped_as_the_controller_stamps_it():
    numbers = iter(range(10))
    report = simulated(
        cluster("n1"),
        template("t", part(count=2)),
        pod("p", "template:t"),
        now=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        new_share_id=lambda: f"share-{next(numbers)}",
    )
    (entry,) = report.placements[0]["claims"]
    assert entry["allocation"]["allocationTimestamp"] == "2026-01-02T03:04:05Z"
    assert [result["shareID"] for result in entry["allocation"]["devices"]["results"]] == ["share-0", "share-1"]


def test_a_card_that_is_shared_without_any_capacity_is_shared_by_the_next_pod_too():
    shared = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "d",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "one", "allowMultipleAllocations": True}],
        },
    }
    requested = template("t", {"name": "r", "exactly": {"deviceClassName": "c"}})
    pods = [pod("a", "template:t"), pod("b", "template:t")]
    report = simulated(shared, device_class("c", driver="d"), requested, pods)
    assert places(report) == {"a": ("n", ["one"]), "b": ("n", ["one"])}
    results = [entry["claims"][0]["allocation"]["devices"]["results"][0] for entry in report.placements]
    assert all(result["consumedCapacity"] == {} for result in results)
    assert results[0]["shareID"] != results[1]["shareID"]


# --- shared claims ---------------------------------------------------------------------------------------------------


def test_a_second_pod_with_the_same_claim_follows_the_first():
    report = simulated(
        cluster(),
        claim("both"),
        pod("a", "both", nodeSelector={"kubernetes.io/hostname": "n2"}),
        pod("b", "both"),
        *[node("n2", labels={"kubernetes.io/hostname": "n2"})],
    )
    assert places(report) == {"a": ("n2", ["gpu-0"]), "b": ("n2", ["gpu-0"])}
    first, second = (entry["claims"][0] for entry in report.placements)
    assert first == second


def test_a_shared_claim_goes_where_all_its_pods_fit():
    """`a` alone would go to n1, where `b` has no room."""
    busy = pod("busy", nodeName="n1", limits={"cpu": "6"})
    pods = [pod("a", "both", limits={"cpu": "1"}), pod("b", "both", limits={"cpu": "4"})]
    report = simulated(cluster(), busy, claim("both"), pods)
    assert {name: where for name, (where, _) in places(report).items()} == {"a": "n2", "b": "n2"}


def test_a_pod_that_cannot_follow_says_why():
    away = pod("b", "both", nodeSelector={"zone": "a"})
    report = simulated(cluster("n1"), node("n3", labels={"zone": "a"}), allocated("both", "n1", "gpu-0"), away)
    assert refusal(report)["reasons"] == {"NodeAffinityNotMatch": 1, "NodeNotWhereClaimIsAllocated": 1}


def test_a_claim_named_twice_by_one_pod():
    report = simulated(cluster("n1"), claim("one"), pod("p", "one", "one"))
    first, second = report.placements[0]["claims"]
    assert (first["podClaimName"], second["podClaimName"]) == ("c0", "c1")
    assert first["allocation"] == second["allocation"]


def test_claims_that_one_container_must_not_use_together_are_refused_as_by_the_controller():
    """Another pod may join the named one, and would be given the devices of both."""
    together = {"claims": [{"name": "c0"}, {"name": "c1"}]}
    apart = pod("apart", "shared", "template:t")
    joined = pod("joined", "shared", "template:t", containers=[{"name": "main", "resources": together}])
    report = simulated(cluster("n1"), claim("shared"), template("t"), joined, apart)
    assert refusal(report)["error"].startswith(
        "Pod default/joined: spec.containers[main].resources.claims: uses claim c0, which other pods may join"
    )
    assert list(places(report)) == ["apart"]


def test_a_claim_of_another_pod_under_the_name_of_a_generated_one_is_refused_as_by_the_controller():
    waiting = pod("p", "template:t")
    waiting["status"] = {"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "p-c0-x7k2p"}]}
    report = simulated(cluster("n1"), template("t"), claim("p-c0-x7k2p"), waiting)
    assert "ResourceClaim default/p-c0-x7k2p was not made for this pod" in refusal(report)["error"]


# --- generated claims ------------------------------------------------------------------------------------------------


def test_the_claim_that_the_cluster_generated_is_used():
    """A pending pod as read from a cluster: its claim has a name of its own, and may be allocated."""
    waiting = pod("p", "template:t")
    waiting["status"] = {"resourceClaimStatuses": [{"name": "c0", "resourceClaimName": "p-c0-x7k2p"}]}
    waiting["metadata"]["uid"] = "uid-of-p"
    generated = allocated("p-c0-x7k2p", "n2", "gpu-1")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-of-p", "controller": True}
    generated["metadata"]["ownerReferences"] = [owner]
    report = simulated(cluster(), template("t"), generated, waiting)
    (placement,) = report.placements
    assert (placement["node"], placement["claims"][0]["name"]) == ("n2", "p-c0-x7k2p")


def test_an_entry_that_needs_no_claim_is_left_out():
    waiting = pod("p", "template:t", "own")
    waiting["status"] = {"resourceClaimStatuses": [{"name": "c0"}]}
    report = simulated(cluster("n1"), template("t"), claim("own"), waiting)
    assert [entry["podClaimName"] for entry in report.placements[0]["claims"]] == ["c1"]


def test_a_generated_claim_is_not_the_one_that_happens_to_have_its_name():
    report = simulated(cluster("n1"), template("t"), allocated("p-c0", "n1", "gpu-3"), pod("p", "template:t"))
    assert places(report) == {"p": ("n1", ["gpu-0"])}


def test_policies_may_stand_on_the_claim_inside_a_template_on_the_template_and_on_the_class():
    idle_card = {DEVICE_POLICY: "spread"}
    pods = [pod("a", "template:t"), pod("b", "template:t")]
    packed = Policies(device_policy=DevicePolicy(("binpack",)))
    inside = template("t", annotations=idle_card)
    outside = template("t")
    outside["metadata"]["annotations"] = idle_card
    on_class = device_class("vgpu", annotations=idle_card)
    for given in ([inside], [outside], [template("t"), on_class]):
        found = places(simulated(cluster("n1"), given, pods, policies=packed))
        assert [devices for _, devices in found.values()] == [["gpu-0"], ["gpu-1"]]


# --- legacy pods -----------------------------------------------------------------------------------------------------


def test_a_pod_with_a_claim_and_legacy_resources_gets_both():
    containers = [
        {"name": "main", "resources": {"limits": LEGACY}},
        {"name": "side", "resources": {"claims": [{"name": "c0"}]}},
    ]
    mixed = pod("p", "own", containers=containers)
    report = simulated(cluster("n1"), claim("own", part(memory="15Gi")), mixed)
    (placement,) = report.placements
    assert [(entry["podClaimName"], entry["name"]) for entry in placement["claims"]] == [
        ("c0", "own"),
        ("hami", "p-hami"),
    ]
    assert places(report) == {"p": ("n1", ["gpu-0", "gpu-1"])}


def test_a_percentage_is_of_the_card_that_is_chosen():
    half = pod("p", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50})
    report = simulated(cluster("n2"), half)
    (result,) = report.placements[0]["claims"][0]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["memory"] == "11514Mi"  # of 23028
    (config,) = report.placements[0]["claims"][0]["allocation"]["devices"]["config"]
    assert config["opaque"]["parameters"]["memoryPercent"] == 50


def test_what_cannot_be_converted_is_the_error_of_that_pod():
    bad = pod("bad", limits={"nvidia.com/gpu": "many"})
    report = simulated(cluster("n1"), bad, pod("good", limits=LEGACY))
    assert list(places(report)) == ["good"]
    assert refusal(report)["pod"] == "default/bad"
    assert 'container "main": resources.limits["nvidia.com/gpu"] is \'many\'' in refusal(report)["error"]
    assert refusal(report)["reasons"] == {}


def test_warnings_of_the_conversion_are_notes():
    report = simulated(cluster("n1"), pod("p", limits={"nvidia.com/gpu": 1, "nvidia.com/gpucores": 120}))
    assert any("Pod default/p" in note and "is 120, more than a card has" in note for note in report.notices)


def opted_out(form):
    plain = {"nvidia.com/gpu": 1}
    if form == "pod":
        return [pod("p", limits=plain, labels={"hami.io/webhook": "ignore"})]
    if form == "namespace":
        metadata = {"name": "plugin", "labels": {"hami.io/webhook": "ignore"}}
        return [{"kind": "Namespace", "metadata": metadata}, pod("p", limits=plain, namespace="plugin")]
    return [pod("p", limits=plain, namespace="kube-system")]


@pytest.mark.parametrize("form", ["pod", "namespace", "kube-system"])
def test_pods_that_the_webhook_leaves_alone_need_a_device_plugin(form):
    whole = device_class("nvidia-gpu.hami.io")
    whole["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    report = simulated(cluster(), whole, opted_out(form))
    why = {
        "pod": "nvidia.com/gpu, which stands for DeviceClass nvidia-gpu.hami.io",
        "namespace": "namespace plugin: run: kubectl label namespace plugin hami.io/webhook=enabled --overwrite, or convert",
        "kube-system": "the webhook converts no pods of namespace kube-system: move it to another one, or convert",
    }
    assert why[form] in refusal(report)["error"]
    plugin = node("n3")
    plugin["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    report = simulated(cluster(), whole, plugin, opted_out(form))
    assert [(entry["node"], entry["claims"]) for entry in report.placements] == [("n3", [])]


def test_a_node_whose_device_plugin_still_offers_the_resource_is_no_place_for_a_converted_pod():
    plugin = node("n1")
    plugin["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    report = simulated(cluster(), plugin, pod("p", limits=LEGACY))
    assert places(report) == {"p": ("n2", ["gpu-0"])}
    report = simulated(cluster("n1"), plugin, pod("p", limits=LEGACY))
    assert refusal(report)["reasons"] == {"NodeOffersDevicePlugin": 1}


# --- who is ours -----------------------------------------------------------------------------------------------------


def test_every_driver_counts_as_managed_and_the_fence_is_ours():
    taint = {"key": "hami.io/controller-allocates", "effect": "NoSchedule"}
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "fence"},
        "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint},
    }
    other = {**rule, "metadata": {"name": "broken"}, "spec": {"deviceSelector": {}, "taint": {**taint, "key": "xid"}}}
    foreign = slices("n1", "g4dn.12xlarge")
    for each in foreign:
        each["spec"]["driver"] = "gpu.example.com"
    given = [
        node("n1"),
        foreign,
        device_class(driver="gpu.example.com"),
        rule,
        template("t"),
        pod("p", "template:t"),
    ]
    assert places(simulated(*given)) == {"p": ("n1", ["gpu-0"])}
    assert refusal(simulated(*given, other))["pod"] == "default/p"


def test_the_nominated_node_is_preferred():
    waiting = pod("p", "template:t")
    waiting["status"] = {"nominatedNodeName": "n2"}
    assert places(simulated(cluster(), template("t"), waiting)) == {"p": ("n2", ["gpu-0"])}


def test_admin_access_needs_its_label_only_where_the_namespace_is_in_the_input():
    requested = part()
    requested["exactly"]["adminAccess"] = True
    given = [cluster("n1"), claim("look", requested), pod("p", "look")]
    report = simulated(*given)
    assert places(report) == {"p": ("n1", ["gpu-0"])}
    assert "no Namespace default in the input: assumed to allow adminAccess" in report.notes
    plain = {"kind": "Namespace", "metadata": {"name": "default"}}
    assert "adminAccess needs the label" in refusal(simulated(*given, plain))["error"]


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_without_any_node_those_of_the_slices_are_assumed():
    report = simulated(slices("n2", "g5.12xlarge"), device_class(), template("t"), pod("p", "template:t"))
    assert places(report) == {"p": ("n2", ["gpu-0"])}
    assert report.notes == ["no Node in the input: assumed n2, ready and empty"]


def test_slices_of_a_node_that_is_missing_are_told():
    report = simulated(cluster("n1"), slices("n9", "g5.12xlarge"), template("t"), pod("p", "template:t"))
    assert places(report) == {"p": ("n1", ["gpu-0"])}
    assert report.notes == ["no Node n9 in the input: nothing is placed on its devices"]


# --- errors of a pod -------------------------------------------------------------------------------------------------


def broken_pool():
    twice = slices("n1", "g4dn.12xlarge")
    twice[0]["spec"]["devices"].append(twice[0]["spec"]["devices"][0])
    return [node("n1"), *twice, device_class()]


def test_a_pool_that_is_incomplete_is_named():
    published = slices("n1", "g4dn.12xlarge")
    published[0]["spec"]["pool"]["resourceSliceCount"] = 2
    report = simulated(node("n1"), published, device_class(), claim("c"), pod("p", "c"))
    assert refusal(report)["error"] == ""
    assert "pool nvidia.hami.io/n1" in refusal(report)["message"]


def selecting(expression):
    requested = part()
    requested["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return requested


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([cluster("n1"), claim("c", part(class_name="gone")), pod("p", "c")], "DeviceClass gone does not exist"),
        ([cluster("n1"), claim("c", selecting("device.")), pod("p", "c")], "selectors[0]"),
        ([cluster("n1"), claim("c", selecting('device.attributes["x.io"].y == 1')), pod("p", "c")], "no such key: y"),
        ([broken_pool(), claim("c"), pod("p", "c")], "duplicate device name gpu-0"),
        ([cluster("n1"), pod("p", "c")], "spec.resourceClaims[c0]: ResourceClaim default/c does not exist"),
        ([cluster("n1"), pod("p", "template:t")], "ResourceClaimTemplate default/t does not exist"),
        ([cluster("n1"), claim("c", {"name": "r"}), pod("p", "c")], "neither exactly nor firstAvailable"),
        (
            [cluster("n1"), pod("p", resourceClaims=[{"name": "x"}])],
            "spec.resourceClaims[x]: give either resourceClaimName or resourceClaimTemplateName",
        ),
        (
            [cluster("n1"), claim("c"), pod("p", "c", annotations={DEVICE_POLICY: "pack"})],
            f"Pod default/p: annotation {DEVICE_POLICY}: 'pack' is not one of",
        ),
        (
            [cluster("n1"), claim("c"), pod("p", "c", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])],
            "spec.schedulingGates: waits for kueue.x-k8s.io/admission",
        ),
        (
            [cluster("n1"), pod("p", limits={"deviceclass.resource.kubernetes.io/vgpu": 1})],
            "which stands for DeviceClass vgpu",
        ),
    ],
)
def test_the_error_of_a_pod_says_what_to_mend_and_the_next_pod_is_placed(given, message):
    report = simulated(*given, pod("next"))
    assert message in refusal(report)["error"]
    assert refusal(report)["message"] == refusal(report)["error"]
    assert list(places(report)) == ["next"]


def test_our_own_gate_does_not_keep_a_pod_waiting():
    gated = pod("p", "c", schedulingGates=[{"name": "hami.io/allocation"}])
    assert places(simulated(cluster("n1"), claim("c"), gated)) == {"p": ("n1", ["gpu-0"])}


def test_pods_that_are_finished_or_going_are_left_out():
    gone = pod("gone")
    gone["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    done = {**pod("done"), "status": {"phase": "Failed"}}
    report = simulated(cluster("n1"), gone, done)
    assert report.document() == {"placements": [], "unplaced": []}


def test_no_claim_is_placed_where_a_device_plugin_still_hands_out_the_cards():
    """By hami-dra's rules; upstream knows of no device plugins."""
    plugin = node("n1")
    plugin["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    given = [
        plugin,
        *(each for each in cluster("n1", "n2") if each != node("n1")),
        template("t"),
        pod("p", "template:t"),
    ]
    assert places(simulated(*given)) == {"p": ("n2", ["gpu-0"])}
    assert places(simulated(*given, first_fit=True)) == {"p": ("n1", ["gpu-0"])}


def test_a_pod_that_names_its_node_gets_its_devices_there():
    """As by the controller; kube-scheduler is not involved."""
    given = [*cluster("n1", "n2"), claim("a", part()), template("t", part())]
    wanted = [pod("p", "a", nodeName="n2"), pod("q", "template:t", nodeName="n2"), pod("r", nodeName="n1")]
    report = simulated(*given, *wanted)
    assert {name: node_name for name, (node_name, _) in places(report).items()} == {"p": "n2", "q": "n2"}
    assert sum("write nodeSelector: {kubernetes.io/hostname: n2} instead" in each for each in report.notices) == 2


def test_a_pod_of_a_scheduler_that_is_not_served_is_not_placed():
    theirs = pod("p", "a", schedulerName="volcano")
    given = [*cluster("n1"), claim("a", part()), theirs]
    entry = refusal(simulated(*given))
    assert "spec.schedulerName is volcano, and hami-dra places pods of default-scheduler only" in entry["error"]
    served = simulated(*given, scheduler_names=frozenset({"default-scheduler", "volcano"}))
    assert places(served)["p"][0] == "n1"
