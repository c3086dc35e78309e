"""Members of one kind share a refusal and the sorted nodes: never those that another member tells apart by their labels."""

import random
from unittest.mock import patch

import pytest

from controller.decide import PodClaim, SchedulingRequest, node_search
from controller.gangs import UnitDecision, decide_gang
from controller.gangs.member_placements import MemberPlacements
from controller.scoring.policies import DevicePolicy, Policies
from tests.cards import card, claim, pod, request
from tests.support.gang_requests import OPTIONS, cluster, devices_of, gang, member

HOST = "kubernetes.io/hostname"


def one(name, role, avoids=None, policy="binpack"):
    spec = {}
    if avoids:
        term = {"labelSelector": {"matchLabels": {"role": avoids}}, "topologyKey": HOST}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return SchedulingRequest(
        pod=pod(name, labels={"role": role}, **spec),
        claims=(PodClaim("c", claim(f"{name}-c", [request(memory="1Gi", cores="0")])),),
        policies=Policies(node_policy=policy, device_policy=DevicePolicy(("binpack",))),
    )


def test_one_that_is_kept_away_says_nothing_of_those_with_other_labels():
    inventory = cluster(1, 4, labels=lambda n: {HOST: f"n{n:02}"}, shares="30")
    members = [one("a0", "a", "x"), one("a1", "a", "x"), one("b0", "x"), *(one(f"c{i}", "y") for i in range(11))]
    found = decide_gang(inventory, gang(*members, least=13), OPTIONS)
    assert isinstance(found, UnitDecision), found.message


def test_no_member_is_placed_where_another_keeps_it_away():
    inventory = cluster(2, 2, labels=lambda n: {HOST: f"n{n:02}"}, shares="3")
    members = [one("m0", "x", "x", "spread"), one("m1", "y", None, "spread"), one("m2", "x", None, "spread")]
    found = decide_gang(inventory, gang(*members), OPTIONS)
    at = {r.pod.metadata.name: d.node for r, d in found.placed}
    assert at["m0"] != at["m2"], at


def test_what_the_search_finds_is_taken_on_all_nodes_that_are_alike():
    def islands(_number):
        cards = [card(index, shares="1") for index in range(8)]
        for index, each in enumerate(cards):
            each["attributes"]["hami.io/linkGroup"] = {"int": index // 4}
        return cards

    inventory = cluster(20, devices=islands)
    members = [member(f"p{number:02}", 4, device_policy="topology-aware") for number in range(40)]
    with patch.object(node_search, "solve", side_effect=node_search.solve) as searched:
        found = decide_gang(inventory, gang(*members), OPTIONS)
    assert isinstance(found, UnitDecision)
    assert searched.call_count == 2  # a node that is idle, and one of which an island is taken
    taken = devices_of(found)
    assert len(taken) == 160
    for _, decision in found.placed:
        [entry] = decision.allocations
        assert len({int(each["device"][-1]) // 4 for each in entry.allocation["devices"]["results"]}) == 1


def places(members, inventory, least):
    found = decide_gang(inventory, gang(*members, least=least), OPTIONS)
    if not isinstance(found, UnitDecision):
        return found.message
    return [(r.pod.metadata.name, d.node, d.fitting) for r, d in found.placed]


@pytest.mark.parametrize("seed", range(60))
def test_alike(seed):
    r = random.Random(seed)
    n = r.randint(2, 4)
    mem = [(f"m{i}", r.choice("xxyyz"), r.choice([None, None, None, "x", "y"])) for i in range(r.randint(3, 7))]
    policy, least = r.choice(["binpack", "spread"]), r.randint(1, len(mem))

    def build():
        inventory = cluster(n, 2, labels=lambda k: {HOST: f"n{k:02}"}, shares="3")
        return inventory, [one(*each, policy=policy) for each in mem]

    inventory, members = build()
    found = places(members, inventory, least)
    with patch.object(MemberPlacements, "_alike_of", lambda *_: None):
        inventory, members = build()
        assert found == places(members, inventory, least)
