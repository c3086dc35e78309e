"""decide: the four patterns, who is refused and why, what is left to the search. Pure, no cluster."""

import msgspec
import pytest

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.decide.companions import grouped
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api.resource import DeviceConstraint
from tests.cards import CLASS, DRIVER, card, claim, device_class, node, pod, request, slice_of, whole
from tests.support.assumed import assume


def cluster(nodes=("n1", "n2"), cards=4, **card_options):
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for name in nodes:
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, [card(index, **card_options) for index in range(cards)]))
    return inventory


def scheduling_request(*claims, name="pod", node_policy="binpack", device_policy="spread", spec=None, **options):
    policies = Policies(node_policy=node_policy, device_policy=DevicePolicy((device_policy,)))
    entries = tuple(PodClaim(f"c{number}", each) for number, each in enumerate(claims))
    return SchedulingRequest(pod=pod(name, **(spec or {})), claims=entries, policies=policies, **options)


def place(inventory, wanted, **options):
    """Decide and make it so."""
    answer = decide(inventory, wanted, Options(managed=frozenset({DRIVER}), **options))
    assert isinstance(answer, Decision), answer
    for entry in answer.allocations:
        assume(inventory, entry.claim.metadata.uid, entry.allocation)
    inventory.assume_pod(wanted.pod, answer.node)
    return answer


def refused(inventory, wanted, **options):
    answer = decide(inventory, wanted, Options(managed=frozenset({DRIVER}), **options))
    assert isinstance(answer, Unschedulable), answer
    return answer


def results(answer):
    return [result for entry in answer.allocations for result in entry.allocation["devices"]["results"]]


def shared(name, memory="7500Mi", **capacity):
    return claim(name, [request(memory=memory, **({"cores": "0"} | capacity))])


@pytest.mark.parametrize(
    ("node_policy", "device_policy", "expected"),
    [
        ("binpack", "binpack", {("n1", "gpu-0"): 2, ("n1", "gpu-1"): 2}),
        ("spread", "binpack", {("n1", "gpu-0"): 2, ("n2", "gpu-0"): 2}),
        ("binpack", "spread", {("n1", f"gpu-{index}"): 1 for index in range(4)}),
        ("spread", "spread", {(name, f"gpu-{index}"): 1 for name in ("n1", "n2") for index in range(2)}),
    ],
)
def test_the_four_patterns(node_policy, device_policy, expected):
    inventory = cluster(memory="15Gi")
    found = {}
    for number in range(4):
        wanted = scheduling_request(
            shared(f"c{number}"), name=f"p{number}", node_policy=node_policy, device_policy=device_policy
        )
        answer = place(inventory, wanted)
        (result,) = results(answer)
        found[answer.node, result["device"]] = found.get((answer.node, result["device"]), 0) + 1
    assert found == expected


def test_the_allocation_says_all_that_is_taken_and_where():
    answer = place(cluster(), scheduling_request(shared("c")))
    (entry,) = answer.allocations
    (result,) = entry.allocation["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "7500Mi", "cores": "0", "shares": "1"}
    assert "shareID" not in result
    assert "allocationTimestamp" not in entry.allocation
    (term,) = entry.allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": [answer.node]}]
    assert answer.score.devices == ((f"{DRIVER}/{answer.node}/gpu-0", pytest.approx(10 * (0.1 + 7500 / 16384))),)


def test_whole_cards_want_idle_ones_and_let_nobody_join():
    inventory = cluster(nodes=["n1"], cards=2)
    place(inventory, scheduling_request(shared("small"), name="small"))
    whole_card = place(inventory, scheduling_request(claim("whole", [request()]), name="whole"))
    assert results(whole_card)[0]["device"] == "gpu-1"
    assert refused(inventory, scheduling_request(claim("more", [request()]), name="more")).reasons == {
        "CardInsufficientMemory": 2,
    }


def test_all_cores_are_exclusive_and_no_cores_do_not_join_them():
    inventory = cluster(nodes=["n1"], cards=1)
    place(inventory, scheduling_request(shared("small", cores="50"), name="small"))
    exclusive = scheduling_request(shared("all", memory="1Gi", cores="100"), name="all")
    assert refused(inventory, exclusive).reasons == {"CardInsufficientCore": 1}
    zero = cluster(nodes=["n1"], cards=1)
    place(zero, scheduling_request(shared("none", memory="1Gi"), name="none"))
    assert refused(zero, exclusive).reasons == {"ExclusiveDeviceAllocateConflict": 1}
    taken = cluster(nodes=["n1"], cards=1)
    place(taken, exclusive)
    assert refused(taken, scheduling_request(shared("none", memory="1Gi"), name="none")).reasons == {
        "CardComputeUnitsExhausted": 1,
    }


def test_an_allocation_with_parameters_can_be_assumed():
    inventory = cluster(nodes=["n1"], cards=1)
    parameters = {"apiVersion": "hami.io/v1alpha1", "kind": "DeviceConfig", "memoryPercent": 50}
    opaque = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    answer = place(inventory, scheduling_request(claim("half", [request(cores="0")], config=[opaque])))
    (entry,) = answer.allocations
    assert entry.allocation["devices"]["config"] == [{"source": "FromClaim", **opaque}]
    assert inventory.usage.consumed(DeviceId(DRIVER, "n1", "gpu-0"))["memory"] == 8 << 30


def test_first_fit_ignores_policies_and_vendor_rules():
    inventory = cluster(nodes=["n1"], cards=2)
    place(inventory, scheduling_request(shared("a", memory="1Gi"), name="a"), first_fit=True)
    second = place(inventory, scheduling_request(shared("b", memory="1Gi", cores="100"), name="b"), first_fit=True)
    assert results(second)[0]["device"] == "gpu-0"


def test_cards_that_do_not_reach_the_node_are_no_reason_to_be_silent():
    inventory = cluster(nodes=["n1"], cards=0)
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    inventory.slice_changed(None, slice_of("wide", [card(0)], pool="wide", nodeSelector=elsewhere))
    assert refused(inventory, scheduling_request(shared("c"))).reasons == {"NodeInsufficientDevice": 1}


def test_every_card_counts_once_by_its_first_reason():
    inventory = cluster(nodes=["n1"], cards=4)
    inventory.slice_changed(
        None,
        slice_of(
            "n1",
            [
                card(0, taints=[{"key": "xid", "effect": "NoSchedule"}]),
                card(1, product="NVIDIA A10G"),
                card(2, memory="4Gi"),
                card(3, shares="0"),
            ],
        ),
    )
    picky = request(selectors=['device.attributes["hami.io"].productName == "Tesla T4"'], memory="7500Mi", cores="0")
    answer = refused(inventory, scheduling_request(claim("c", [picky])))
    assert answer.reasons == {
        "CardNotHealth": 1,
        "CardTypeMismatch": 1,
        "CardInsufficientMemory": 1,
        "CardTimeSlicingExhausted": 1,
    }
    assert answer.message == (
        "no node fits now: needs a device with 7500 MiB; 1 device that would do is not healthy (taint xid:NoSchedule)"
    )


def test_nodes_count_once_by_their_first_reason():
    inventory = cluster(nodes=["cordoned", "full", "small", "tainted"])
    inventory.node_changed(None, node("cordoned", unschedulable=True))
    inventory.node_changed(None, node("tainted", taints=[{"key": "team", "value": "red", "effect": "NoSchedule"}]))
    inventory.node_changed(None, node("full", allocatable={"cpu": "100m", "memory": "1Gi", "pods": "10"}))
    inventory.slice_changed(None, slice_of("small", [card(0)]))
    cpu = {"containers": [{"name": "x", "resources": {"requests": {"cpu": "1"}}}]}
    answer = refused(inventory, scheduling_request(claim("c", [request(count=2, memory="1Gi", cores="0")]), spec=cpu))
    assert answer.reasons == {
        "NodeUnschedulable": 1,
        "NodeTaintNotTolerated": 1,
        "NodeInsufficientResources": 1,
        "NodeInsufficientDevice": 1,
    }
    assert answer.nodes["small"] == {"NodeInsufficientDevice": 1}


def test_too_few_fitting_cards_are_counted_as_such():
    inventory = cluster(nodes=["n1"], cards=3)
    for number in range(2):
        place(inventory, scheduling_request(shared(f"c{number}", memory="12Gi"), name=f"p{number}"))
    answer = refused(inventory, scheduling_request(claim("pair", [request(count=2, memory="10Gi", cores="0")])))
    assert answer.reasons == {"CardInsufficientMemory": 2, "AllocatedCardsInsufficientRequest": 1}


def test_a_second_claim_of_the_pod_sees_the_first():
    answer = place(cluster(nodes=["n1"]), scheduling_request(shared("a"), shared("b"), device_policy="spread"))
    assert [result["device"] for result in results(answer)] == ["gpu-0", "gpu-1"]
    packed = place(cluster(nodes=["n1"]), scheduling_request(shared("a"), shared("b"), device_policy="binpack"))
    assert [result["device"] for result in results(packed)] == ["gpu-0", "gpu-0"]


def test_all_claims_of_a_pod_or_none():
    inventory = cluster(nodes=["n1"], cards=1)
    assert isinstance(
        refused(inventory, scheduling_request(shared("a", memory="12Gi"), shared("b", memory="12Gi"))), Unschedulable
    )


def test_an_allocated_claim_pins_the_pod_to_its_node():
    inventory = cluster()
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}
    there = claim("there", allocation={"devices": {"results": []}, "nodeSelector": selector})
    assert place(inventory, scheduling_request(there, shared("new"))).node == "n2"
    gone = claim("gone", allocation={"devices": {}, "nodeSelector": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]}]}})  # fmt: skip
    assert refused(inventory, scheduling_request(gone, shared("new"))).reasons == {"NodeNotWhereClaimIsAllocated": 2}


def test_refused_preferred_and_required_nodes():
    inventory = cluster(nodes=["n1", "n2", "n3"])
    assert place(inventory, scheduling_request(shared("a"), name="a", refused_nodes={"n1": "cpu"})).node == "n2"
    assert place(inventory, scheduling_request(shared("b"), name="b", preferred_node="n3")).node == "n3"
    assert place(inventory, scheduling_request(shared("c"), name="c", required_node="n1")).node == "n1"
    everywhere = dict.fromkeys(["n1", "n2", "n3"], "cpu")
    assert refused(inventory, scheduling_request(shared("d"), refused_nodes=everywhere)).reasons == {
        "NodeRefusedByScheduler": 3
    }


def test_the_second_refusal_leads_to_another_zone_or_shape():
    inventory = cluster(nodes=[])
    zones = {"n1": "a", "n2": "a", "n3": "a", "n4": "b", "n5": "b", "n6": "b"}
    for name, zone in zones.items():
        kind = "large" if name in ("n3", "n6") else "small"
        labels = {"topology.kubernetes.io/zone": zone, "node.kubernetes.io/instance-type": kind}
        inventory.node_changed(None, node(name, labels=labels))
        inventory.slice_changed(None, slice_of(name, [card(0)]))
    found, refused_nodes = [], {}
    for _ in zones:
        wanted = scheduling_request(
            shared("a"),
            name="a",
            refused_nodes=dict(refused_nodes),
            earlier_refusals=dict.fromkeys(refused_nodes, 1),
        )
        answer = decide(inventory, wanted, Options(managed=frozenset({DRIVER})))
        found.append(answer.node)
        refused_nodes[answer.node] = "secret"
    # small in a, twice; then large in b; the rest is as like as that
    assert found == ["n1", "n2", "n6", "n3", "n4", "n5"]


def test_nodes_without_an_instance_type_differ_by_what_they_offer():
    inventory = cluster(nodes=["n1", "n2", "n3", "n4"])
    inventory.node_changed(None, node("n4", allocatable={"cpu": "96", "pods": "110"}))
    once = scheduling_request(shared("a"), name="a", earlier_refusals={"n1": 1})
    assert place(inventory, once).node == "n1"
    again = scheduling_request(shared("b"), name="b", earlier_refusals={"n1": 1, "n2": 1})
    assert place(inventory, again).node == "n4", "refusals that ended count too"


def test_a_pod_that_is_on_a_node_already_gets_its_devices_there_whatever_the_node_looks_like():
    inventory = cluster()
    inventory.node_changed(None, node("n1", unschedulable=True, allocatable={"cpu": "1m", "pods": "1"}))
    there = {"required_node": "n1", "refused_nodes": {"n1": "cpu"}}
    assert place(inventory, scheduling_request(shared("a"), **there)).node == "n1"
    inventory.slice_changed(None, slice_of("n1", []))
    assert refused(inventory, scheduling_request(shared("b"), name="b", **there)).reasons["NodeAffinityNotMatch"] == 1


def test_a_node_with_a_device_plugin_is_no_place_for_a_claim():
    inventory = cluster()
    inventory.node_changed(None, node("n1", allocatable={"cpu": "8", "pods": "110", "nvidia.com/gpu": "4"}))
    wanted = scheduling_request(shared("a"), plugin_resources=("nvidia.com/gpu",))
    assert place(inventory, wanted).node == "n2"
    inventory.node_changed(None, node("n2", unschedulable=True))
    assert refused(inventory, wanted).reasons == {"NodeOffersDevicePlugin": 1, "NodeUnschedulable": 1}


def test_a_node_that_takes_companions_too_is_better():
    inventory = cluster()
    inventory.node_changed(None, node("n1", allocatable={"cpu": "1", "memory": "64Gi", "pods": "110"}))
    heavy = pod("heavy", containers=[{"name": "x", "resources": {"requests": {"cpu": "4"}}}])
    assert place(inventory, scheduling_request(shared("a"), companions=grouped([heavy]))).node == "n2"


def test_a_node_that_kube_scheduler_refused_for_companions_is_worse():
    inventory, light = cluster(), grouped([pod("light")])
    best = place(inventory, scheduling_request(shared("a"), companions=light)).node
    other = place(inventory, scheduling_request(shared("a"), companions=light, refused_for_companions={best: 1})).node
    assert {best, other} == {"n1", "n2"}


def test_no_node_is_refused_because_of_companions():
    inventory = cluster()
    huge = pod("huge", containers=[{"name": "x", "resources": {"requests": {"cpu": "400"}}}])
    lost = pod("lost", nodeSelector={"no": "such"})
    found = place(inventory, scheduling_request(shared("a"), companions=grouped([huge, lost])))
    assert [(each.companions.pod.metadata.name, each.companions.count, each.code) for each in found.left_out] == [
        ("huge", 1, "NodeInsufficientResources"),
        ("lost", 1, "NodeAffinityNotMatch"),
    ]


def test_companions_are_counted_beside_each_other():
    inventory = cluster()
    for name, cpu in (("n1", "8"), ("n2", "16")):
        inventory.node_changed(None, node(name, allocatable={"cpu": cpu, "memory": "64Gi", "pods": "110"}))
    pods = [
        pod(f"p{number}", containers=[{"name": "x", "resources": {"requests": {"cpu": "4"}}}]) for number in range(3)
    ]
    assert place(inventory, scheduling_request(shared("a"), companions=grouped(pods[:1]))).node == "n1"
    [companions] = grouped(pods)
    assert companions.count == 3
    assert place(inventory, scheduling_request(shared("a"), companions=(companions,))).node == "n2"


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ([claim("c", [request(class_name="missing")])], ["default/c", "missing"]),
        ([claim("c", [request(selectors=["device.nope == 1"])])], ["default/c", "nope"]),
        ([claim("c", [request(selectors=['device.attributes["hami.io"].absent == 1'])])], ["default/c", "absent"]),
    ],
)
def test_what_cannot_be_searched_is_an_error_that_names_it(claims, words):
    answer = refused(cluster(), scheduling_request(*claims))
    assert answer.error
    for word in words:
        assert word in answer.error


def test_devices_of_others_are_not_touched_and_mixed_claims_are_refused():
    inventory = cluster(nodes=["n1"])
    inventory.slice_changed(None, slice_of("n1", [whole(0)], name="other", driver="other.example.com"))
    inventory.class_changed(None, device_class("any", "true"))
    inventory.class_changed(None, device_class("other", 'device.driver == "other.example.com"'))
    both = scheduling_request(claim("c", [request("a", class_name=CLASS), request("b", class_name="other")]))
    assert "split" in refused(inventory, both).error
    either = place(inventory, scheduling_request(claim("d", [request("a", class_name="any")])))
    assert results(either)[0]["driver"] == DRIVER
    beside = place(
        inventory, scheduling_request(claim("e", [request("a", class_name="other")]), shared("f"), name="beside")
    )
    assert [entry.claim.metadata.name for entry in beside.allocations] == ["f"]


def test_an_invalid_pool_is_named_only_when_nothing_else_fits():
    inventory = cluster(nodes=["n1", "n2"])
    inventory.slice_changed(None, slice_of("n1", [card(0), card(0)]))
    assert place(inventory, scheduling_request(shared("a"))).node == "n2"
    inventory.node_changed(None, node("n2", unschedulable=True))
    assert "duplicate" in refused(inventory, scheduling_request(shared("b"), name="b")).error


def test_hard_spread_over_zones_is_right_at_the_first_try():
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for number in range(30):
        inventory.node_changed(None, node(f"n{number:02}", labels={"zone": f"z{number % 3}"}))
        inventory.slice_changed(None, slice_of(f"n{number:02}", [card(index) for index in range(4)]))
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    zones = []
    for number in range(9):
        wanted = scheduling_request(
            shared(f"c{number}"),
            name=f"web-{number}",
            spec={"labels": {"app": "web"}, "topologySpreadConstraints": [constraint]},
        )
        answer = place(inventory, wanted)
        zones.append(int(answer.node[1:]) % 3)
        assert max(map(zones.count, range(3))) - min(map(zones.count, range(3))) <= 1


def test_a_pool_that_cannot_be_used_as_published_is_named():
    inventory = cluster(nodes=["n1"], cards=1)
    inventory.node_changed(None, node("n2"))
    inventory.slice_changed(None, slice_of("n2", [card(0)], generation=3, count=2))
    assert place(inventory, scheduling_request(claim("one", [request()]), name="one")).node == "n1"
    answer = refused(inventory, scheduling_request(claim("two", [request()]), name="two"))
    assert answer.reasons == {"CardInsufficientMemory": 1, "NodeInsufficientDevice": 1}
    assert answer.error == ""
    assert answer.message == (
        "no node fits now: needs a whole device; the only one has tenants; "
        f"pool {DRIVER}/n2 of node n2 cannot be used, incomplete: spec.pool.resourceSliceCount is 2, "
        "slices of generation 3: 1; its driver must publish it again"
    )
    elsewhere = scheduling_request(claim("two", [request()]), name="two", required_node="n1")
    assert "cannot be used" not in refused(inventory, elsewhere).message


# --- prioritized lists and constraints under policies ----------------------------------------------------------------


def either(*alternatives, name="gpu"):
    """A firstAvailable request: each alternative as (name, selector)."""
    spelled = [
        {
            "name": alternative,
            "deviceClassName": CLASS,
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": expression}}],
            "capacity": {"requests": {"memory": "1Gi", "cores": "0"}},
        }
        for alternative, expression in alternatives
    ]
    return {"name": name, "firstAvailable": spelled}


def product(text):
    return f'device.attributes["hami.io"].productName == "{text}"'


def mixed_cards():
    """n1 has T4, n2 has A10G."""
    inventory = cluster(nodes=["n1"])
    inventory.node_changed(None, node("n2"))
    inventory.slice_changed(None, slice_of("n2", [card(index, product="NVIDIA A10G") for index in range(4)]))
    return inventory


def test_the_node_of_the_first_alternative_wins_before_all_scores():
    inventory = mixed_cards()
    place(
        inventory,
        scheduling_request(claim("t4", [request(memory="1Gi", cores="0", selectors=[product("Tesla T4")])]), name="t4"),
    )
    wanted = claim("c", [either(("large", product("NVIDIA A10G")), ("small", product("Tesla T4")))])
    answer = place(inventory, scheduling_request(wanted, name="p"))  # binpack alone would join the T4
    assert (answer.node, results(answer)[0]["request"]) == ("n2", "gpu/large")
    other_way = claim("d", [either(("small", product("Tesla T4")), ("large", product("NVIDIA A10G")))])
    answer = place(inventory, scheduling_request(other_way, name="q", node_policy="spread"))
    assert (answer.node, results(answer)[0]["request"]) == ("n1", "gpu/small")


def test_the_ranks_of_several_lists_add_up():
    """n1 serves the first list by its first alternative and the second by its second; n2 has both second ones only."""
    inventory = mixed_cards()
    none = product("none")
    first = either(("a", product("Tesla T4")), ("b", product("NVIDIA A10G")), name="one")
    second = either(("a", none), ("b", none), ("c", "true"), name="two")
    answer = place(inventory, scheduling_request(claim("c", [first, second])))
    assert answer.node == "n1"
    assert [each["request"] for each in results(answer)] == ["one/a", "two/c"]


def test_a_node_that_promised_a_better_alternative_than_it_can_keep_is_taken_only_if_no_other_is_better():
    """On n1 the first alternative looks possible card by card, but its two cards do not share a NUMA node."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())

    def cards(*numa):
        return [
            card(index, product="T4" if place < 9 else "A10G") | {"attributes": attributes(index, place)}
            for index, place in enumerate(numa)
        ]

    def attributes(index, place):
        return card(index)["attributes"] | {
            "hami.io/productName": {"string": "T4" if place < 9 else "A10G"},
            "resource.kubernetes.io/numaNode": {"int": place},
        }

    for name, numa in (("n1", (0, 1, 9, 9)), ("n2", (3, 3, 9, 9))):
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, cards(*numa)))

    def pair(*, name):
        lists = either(("first", product("T4")), ("second", product("A10G")))
        for alternative in lists["firstAvailable"]:
            alternative["count"] = 2
        wanted = claim(name, [lists])
        constraint = msgspec.convert({"matchAttribute": "resource.kubernetes.io/numaNode"}, DeviceConstraint)
        devices = msgspec.structs.replace(wanted.spec.devices, constraints=(constraint,))
        return msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, devices=devices))

    answer = place(inventory, scheduling_request(pair(name="c")))
    assert (answer.node, {each["request"] for each in results(answer)}) == ("n2", {"gpu/first"})
    # without n2 the second alternative on n1 is the best there is
    inventory.node_changed(node("n2"), None)
    answer = place(inventory, scheduling_request(pair(name="d"), name="other"))
    assert (answer.node, {each["request"] for each in results(answer)}) == ("n1", {"gpu/second"})


@pytest.mark.parametrize(
    ("device_policy", "used", "expected"),
    [
        ("binpack", {4: 2, 5: 2, 0: 3}, {"gpu-4", "gpu-5"}),  # the fullest pair, not the fullest single card
        ("spread", {0: 3, 1: 3, 2: 3, 4: 1, 5: 1, 6: 1, 7: 1}, {"gpu-4", "gpu-5"}),  # not the pair with the idlest card
        ("spread", {4: 1, 5: 1, 6: 1, 7: 1, 0: 2}, {"gpu-1", "gpu-2"}),
    ],
)
@pytest.mark.parametrize("requests", [1, 2])
def test_policies_choose_among_the_groups_of_a_constraint(device_policy, used, expected, requests):
    """Eight cards on two NUMA nodes; two of them must be on one, asked for by one request or by two."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    inventory.node_changed(None, node("n1"))

    def on(index):
        attributes = card(index)["attributes"] | {"resource.kubernetes.io/numaNode": {"int": index // 4}}
        return card(index) | {"attributes": attributes}

    inventory.slice_changed(None, slice_of("n1", [on(index) for index in range(8)]))
    for index, tenants in used.items():
        for tenant in range(tenants):
            uuid = f'device.attributes["hami.io"].uuid == "GPU-{index}"'
            filler = claim(f"f{index}-{tenant}", [request(memory="1Gi", cores="0", selectors=[uuid])])
            place(inventory, scheduling_request(filler, name=f"f{index}-{tenant}"))
    asked = [request(f"r{number}", count=2 // requests, memory="1Gi", cores="0") for number in range(requests)]
    wanted = claim("pair", asked)
    constraints = (
        DeviceConstraint(match_attribute="resource.kubernetes.io/numaNode"),
        *((DeviceConstraint(distinct_attribute="hami.io/uuid"),) if requests > 1 else ()),
    )
    devices = msgspec.structs.replace(wanted.spec.devices, constraints=constraints)
    wanted = msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, devices=devices))
    answer = place(inventory, scheduling_request(wanted, device_policy=device_policy))
    assert {each["device"] for each in results(answer)} == expected


def test_of_two_groups_packing_takes_the_one_that_it_leaves_smallest():
    """NUMA node 0 has two idle cards left, NUMA node 1 four: a pair of whole cards goes to the two."""
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    inventory.node_changed(None, node("n1"))
    places = (0, 0, 1, 1, 1, 1)

    def on(index, place):
        attributes = card(index)["attributes"] | {"resource.kubernetes.io/numaNode": {"int": place}}
        return card(index) | {"attributes": attributes}

    inventory.slice_changed(None, slice_of("n1", [on(index, place) for index, place in enumerate(places)]))
    constraint = DeviceConstraint(match_attribute="resource.kubernetes.io/numaNode")

    def pair(name, policy):
        wanted = claim(name, [request(count=2)])
        devices = msgspec.structs.replace(wanted.spec.devices, constraints=(constraint,))
        wanted = msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, devices=devices))
        answer = decide(
            inventory, scheduling_request(wanted, device_policy=policy), Options(managed=frozenset({DRIVER}))
        )
        return {each["device"] for each in results(answer)}

    assert pair("a", "binpack") == {"gpu-0", "gpu-1"}
    assert pair("b", "spread") == {"gpu-2", "gpu-3"}
