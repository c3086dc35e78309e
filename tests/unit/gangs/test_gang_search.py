"""decide_gang: all members or none, and the inventory as before. Pure, no cluster."""

import msgspec
import pytest

from controller.gangs import UnitDecision, UnitRefusal, decide_gang
from controller.gangs.exhaustive_search import devices_of as chosen_devices
from hami_dra.api.resource import DeviceConstraint
from tests.cards import card, claim, node, request, slice_of
from tests.support.gang_requests import (
    OPTIONS,
    RACK,
    cluster,
    devices_of,
    gang,
    held,
    member,
    nodes_of,
    occupy,
    within,
)
from tests.support.quotas import quota_object


def pairs(many):
    return [member(f"p{number}", 2) for number in range(many)]


def placed(inventory, wanted, **options):
    """Decide; the inventory is as before."""
    before = held(inventory)
    found = decide_gang(inventory, wanted, OPTIONS, **options)
    assert held(inventory) == before
    assert isinstance(found, UnitDecision), found
    return found


def refused(inventory, wanted, **options):
    before = held(inventory)
    found = decide_gang(inventory, wanted, OPTIONS, **options)
    assert held(inventory) == before
    assert isinstance(found, UnitRefusal), found
    return found


def test_all_members_are_placed_and_nothing_stays_assumed():
    assert nodes_of(placed(cluster(), gang(*pairs(4)))) == ["n00", "n00", "n01", "n01"]


def test_none_is_placed_where_one_finds_no_room():
    found = refused(cluster(), gang(*pairs(5)))
    assert found.placeable == 4
    assert found.member == "default/p4"
    assert found.message == (
        "4 of 5 members fit at once; even idle, the devices of all nodes are enough for 4, so it never will"
    )
    assert found.refusal.reasons
    assert (found.reason.kind, found.reason.never) == ("gang", True)


def test_a_gang_of_which_no_member_ever_fits_says_what_one_alone_lacks():
    found = refused(cluster(), gang(member("a", 20), member("b", 20)))
    assert found.message.startswith("0 of 2 members fit at once; one alone: needs ")
    assert found.message.endswith("so it never will")


def test_only_a_gang_for_which_all_idle_devices_are_too_few_never_fits():
    busy = cluster()
    occupy(busy, "n00", 3)
    assert refused(busy, gang(*pairs(5))).message.endswith("are enough for 4, so it never will")
    assert "the next one: no node fits now" in refused(busy, gang(*pairs(4))).message
    assert nodes_of(placed(cluster(), gang(*pairs(4))))


def test_a_gang_without_members_to_place_is_placed():
    assert placed(cluster(), gang()).placed == ()


def test_elastic_members_are_left_where_they_find_no_room():
    found = placed(cluster(), gang(*pairs(5), least=3))
    assert (len(found.placed), [each.pod.metadata.name for each, _ in found.left]) == (4, ["p4"])


def test_workers_that_need_whole_nodes_come_before_their_leader():
    inventory = cluster(5, 8)
    occupy(inventory, "n02", 7)
    workers = [member(f"w{number}", 8, node_policy="spread") for number in range(4)]
    found = placed(inventory, gang(member("leader", 1, node_policy="spread"), *workers))
    assert [decision.node for request, decision in found.placed if request.pod.metadata.name == "leader"] == ["n02"]
    assert [request.pod.metadata.name for request, _ in found.placed] == ["leader", "w0", "w1", "w2", "w3"]


@pytest.mark.parametrize(
    ("node_policy", "device_policy", "expected"),
    [
        ("binpack", "binpack", {("n00", "gpu-0"): 2, ("n00", "gpu-1"): 2}),
        ("spread", "binpack", {("n00", "gpu-0"): 2, ("n01", "gpu-0"): 2}),
        ("binpack", "spread", {("n00", f"gpu-{index}"): 1 for index in range(4)}),
        ("spread", "spread", {(name, f"gpu-{index}"): 1 for name in ("n00", "n01") for index in range(2)}),
    ],
)
def test_shared_cards_follow_the_policies_on_both_axes(node_policy, device_policy, expected):
    policies = {"node_policy": node_policy, "device_policy": device_policy}
    members = [member(f"p{number}", memory="7500Mi", cores="0", **policies) for number in range(4)]
    assert devices_of(placed(cluster(memory="15Gi"), gang(*members))) == expected


def counters(name, amount):
    return [{"counterSet": name, "counters": {"parts": {"value": str(amount)}}}]


def divided_cluster(nodes=1):
    """Each node has one card, published whole and as two halves that draw on the same counters."""
    inventory = cluster(0)
    for number in range(nodes):
        name = f"n{number:02}"
        inventory.node_changed(None, node(name))
        sets = [{"name": "card", "counters": {"parts": {"value": "2"}}}]
        devices = [
            {"name": "whole", "attributes": {"size": {"string": "whole"}}, "consumesCounters": counters("card", 2)},
            *(
                {
                    "name": f"half-{index}",
                    "attributes": {"size": {"string": "half"}},
                    "consumesCounters": counters("card", 1),
                }
                for index in range(2)
            ),
        ]
        inventory.slice_changed(
            None, slice_of(name, [], name=f"{name}-counters", count=2, nodeName=name, sharedCounters=sets)
        )
        inventory.slice_changed(None, slice_of(name, devices, count=2))
    return inventory


def whole_or_half(name):
    alternatives = []
    for size in ("whole", "half"):
        wanted = request(size, selectors=[f'device.attributes["nvidia.hami.io"].size == "{size}"'])["exactly"]
        alternatives.append({"name": size, **wanted})
    return member(name, claims=[claim(f"{name}-gpu", [{"name": "gpu", "firstAvailable": alternatives}])])


def test_a_prioritized_list_is_shortened_for_the_whole_gang():
    """kubernetes#138765: each would take the whole card, and both fit on its halves."""
    found = placed(divided_cluster(), gang(whole_or_half("a"), whole_or_half("b")))
    assert devices_of(found) == {("n00", "half-0"): 1, ("n00", "half-1"): 1}
    for wanted, decision in found.placed:
        [entry] = decision.allocations
        assert entry.claim is wanted.claims[0].claim  # as it was asked for, with its whole list


def test_a_prioritized_list_is_shortened_for_one_member_where_that_is_enough():
    found = placed(divided_cluster(2), gang(*[whole_or_half(name) for name in "abc"]))
    assert sorted(devices for _, devices in devices_of(found)) in (
        ["half-0", "half-1", "whole"],
        ["half-0", "half-0", "half-1"],
    )


def matching(name, attribute):
    """A member that asks for two cards with the same value of an attribute."""
    wanted = claim(f"{name}-gpus", [request(count=2)])
    constraint = DeviceConstraint(match_attribute=f"example.com/{attribute}")
    devices = msgspec.structs.replace(wanted.spec.devices, constraints=(constraint,))
    spec = msgspec.structs.replace(wanted.spec, devices=devices)
    return member(name, claims=[msgspec.structs.replace(wanted, spec=spec)])


def test_choices_that_block_each_other_in_any_order_are_avoided():
    """x may have the cards 0 and 4 or 2 and 3, y 0 and 2 or 4 and 5. What x takes first leaves nothing
    for y, and the other way round.
    """
    groups = {"x": {0: "p", 4: "p", 2: "q", 3: "q"}, "y": {0: "p", 2: "p", 4: "q", 5: "q"}}

    def cards(_number):
        found = [card(index) for index in range(6)]
        for attribute, values in groups.items():
            for index, value in values.items():
                found[index]["attributes"][f"example.com/{attribute}"] = {"string": value}
        return found

    inventory = cluster(1, devices=cards)
    for alone, expected in (("x", ["gpu-0", "gpu-4"]), ("y", ["gpu-0", "gpu-2"])):
        assert [device for _, device in devices_of(placed(inventory, gang(matching(alone, alone))))] == expected
    found = placed(inventory, gang(matching("x", "x"), matching("y", "y")))
    chosen = {wanted.pod.metadata.name: decision for wanted, decision in found.placed}
    assert {name: [each.device for each in chosen_devices(decision)] for name, decision in chosen.items()} == {
        "x": ["gpu-2", "gpu-3"],
        "y": ["gpu-4", "gpu-5"],
    }


def test_the_best_attempt_says_why_after_any_number_of_domains_without_room():
    """Two nodes in each of 70 racks; only on one node of the last rack the cards have an equal attribute."""

    def cards(number):
        found = [card(index) for index in range(2)]
        for index, each in enumerate(found):
            each["attributes"]["example.com/x"] = {"int": 0 if number == 139 else index}
        return found

    inventory = cluster(140, devices=cards, labels=lambda number: {RACK: f"r{number // 2:02}"})
    wanted = gang(matching("a", "x"), matching("b", "x"), topology=(within(RACK, required=False),))
    found = refused(inventory, wanted)
    assert found.placeable == 1
    assert "the next one: no node fits now: needs 2 whole devices on one node" in found.message


def test_members_that_share_a_claim_run_on_one_node():
    both = claim("shared", [request(count=1)])
    members = [member(f"p{number}", claims=[both, claim(f"own-{number}", [request(count=3)])]) for number in range(2)]
    inventory = cluster(3, 7)
    occupy(inventory, "n00", 1)
    found = placed(inventory, gang(*members))
    assert len(set(nodes_of(found))) == 1
    assert nodes_of(found)[0] != "n00"  # six cards are free there, and seven are needed
    assert [len(decision.allocations) for _, decision in found.placed] == [2, 1]


def test_members_that_share_a_claim_and_do_not_fit_together_are_refused():
    both = claim("shared", [request(count=1)])
    members = [member(f"p{number}", claims=[both, claim(f"own-{number}", [request(count=3)])]) for number in range(2)]
    assert refused(cluster(3, 6), gang(*members)).placeable <= 1


def test_anti_affinity_between_members_holds():
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"job": "train"}}}
    spec = {
        "labels": {"job": "train"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
    }
    inventory = cluster(3, 8, labels=lambda number: {"kubernetes.io/hostname": f"n{number:02}"})
    members = [member(f"p{number}", spec=spec) for number in range(4)]
    assert nodes_of(placed(inventory, gang(*members[:3]))) == ["n00", "n01", "n02"]
    assert refused(inventory, gang(*members)).placeable == 3


def test_cpu_of_members_adds_up():
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    members = [member(f"p{number}", spec=spec) for number in range(5)]
    assert nodes_of(placed(cluster(2, 8), gang(*members[:4]))) == ["n00", "n00", "n01", "n01"]
    assert refused(cluster(2, 8), gang(*members)).placeable == 4


def test_a_member_in_error_ends_the_search_at_once():
    wrong = member("p1", claims=[claim("wrong", [request(class_name="missing")])])
    found = refused(cluster(), gang(member("p0"), wrong, member("p2")))
    assert "missing" in found.refusal.error
    assert found.member == "default/p1"
    assert found.steps <= 3


def test_pods_that_counted_before_count_again_afterwards():
    inventory = cluster()
    members = pairs(2)
    inventory.assume_pod(members[0].pod, "n01")
    before = held(inventory)
    assert isinstance(decide_gang(inventory, gang(*members), OPTIONS), UnitDecision)
    assert held(inventory) == before
    assert inventory.assumed_node(members[0].pod.metadata.uid) == "n01"


def test_steps_are_limited():
    found = refused(cluster(), gang(*pairs(4)), steps=3)
    assert "given up after 3 steps" in found.message


def test_members_count_against_the_quota_of_their_namespace():
    inventory = cluster(2, 4)
    inventory.quota_changed(None, quota_object({"nvidia.com/gpu": 3}))
    members = pairs(2)
    for each in members:
        inventory.claim_changed(None, each.claims[0].claim)
    assert len(placed(inventory, gang(*members[:1])).placed) == 1
    found = refused(inventory, gang(*members))
    assert found.placeable == 1
    assert "ResourceQuotaNotFit" in found.refusal.reasons
