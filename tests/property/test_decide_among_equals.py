"""The node that `decide` takes is the best of all nodes by the documented keys, whatever the estimates promise.

The oracle asks `decide` about each node alone: one node leaves nothing to estimate. Of these answers the best must be
the answer for all nodes: rank of prioritized lists, then the node policy, then the name. Requests compete for devices
and have constraints, so that estimates are too high on many nodes.
"""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from tests.support.examples import examples

DRIVER = "gpu.example.com"
ANY = msgspec.convert({"metadata": {"name": "any"}, "spec": {}}, DeviceClass)
Json = dict[str, Any]

devices = st.fixed_dictionaries(
    {"kind": st.sampled_from("XY"), "root": st.sampled_from("ab"), "used": st.sampled_from([0, 0, 2, 4])}
)
worlds = st.lists(st.lists(devices, min_size=1, max_size=4), min_size=2, max_size=4)


@st.composite
def exact_requests(draw: st.DrawFn) -> Json:
    request: Json = {"deviceClassName": "any", "count": draw(st.sampled_from([1, 1, 2]))}
    if kind := draw(st.sampled_from(["", "X", "Y"])):
        expression = f'device.attributes["x.io"].kind == "{kind}"'
        request["selectors"] = [{"cel": {"expression": expression}}]
    if memory := draw(st.sampled_from(["", "2", "6"])):
        request["capacity"] = {"requests": {"memory": memory}}
    return request


@st.composite
def claims(draw: st.DrawFn) -> ResourceClaim:
    requests: list[Json] = []
    for number in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            alternatives = draw(st.lists(exact_requests(), min_size=1, max_size=3))
            subrequests = [{"name": f"s{place}", **each} for place, each in enumerate(alternatives)]
            requests.append({"name": f"r{number}", "firstAvailable": subrequests})
        else:
            requests.append({"name": f"r{number}", "exactly": draw(exact_requests())})
    rule = draw(st.sampled_from([None, "matchAttribute", "distinctAttribute"]))
    constraints = [{rule: draw(st.sampled_from(["x.io/root", "x.io/kind"]))}] if rule else []
    body = {
        "metadata": {"name": "c", "namespace": "ns", "uid": "c"},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
    }
    return msgspec.convert(body, ResourceClaim)


def inventory_of(world: dict[str, list[Json]]) -> Inventory:
    inventory = Inventory()
    inventory.class_changed(None, ANY)
    for name, cards in world.items():
        node = {"metadata": {"name": name, "uid": name}, "status": {"allocatable": {"cpu": "8", "pods": "9"}}}
        inventory.node_changed(None, msgspec.convert(node, Node))
        inventory.slice_changed(None, msgspec.convert(_slice(name, cards), ResourceSlice))
        if any(card["used"] for card in cards):
            inventory.claim_changed(None, msgspec.convert(_holder(name, cards), ResourceClaim))
    return inventory


def _slice(node: str, cards: list[Json]) -> Json:
    published = [
        {
            "name": f"d{index}",
            "attributes": {
                "x.io/kind": {"string": card["kind"]},
                "x.io/root": {"string": card["root"]},
                "hami.io/index": {"int": index},
            },
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": "8"}, "cores": {"value": "10"}, "shares": _SHARES},
        }
        for index, card in enumerate(cards)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": node, "uid": node},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": published},
    }


_SHARES = {"value": "2", "requestPolicy": {"default": "1", "validValues": ["1"]}}


def _holder(node: str, cards: list[Json]) -> Json:
    results = [
        {
            "request": "r",
            "driver": DRIVER,
            "pool": node,
            "device": f"d{index}",
            "shareID": f"share-{index}",
            "consumedCapacity": {"memory": str(card["used"]), "cores": str(card["used"]), "shares": "1"},
        }
        for index, card in enumerate(cards)
        if card["used"]
    ]
    return {
        "metadata": {"name": f"held-{node}", "namespace": "ns", "uid": f"held-{node}"},
        "spec": {"devices": {"requests": []}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def decided(world: dict[str, list[Json]], claim: ResourceClaim, policy: str) -> Decision | None:
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": {"containers": [{"name": "m"}]}}
    policies = Policies(node_policy=policy, device_policy=DevicePolicy(("binpack",)))
    request = SchedulingRequest(msgspec.convert(pod, Pod), (PodClaim("c", claim),), policies=policies)
    answer = decide(inventory_of(world), request, Options())
    return answer if isinstance(answer, Decision) else None


def rank_of(decision: Decision) -> int:
    """Return the sum of the places of the alternatives that were taken; lower is better."""
    results = decision.allocations[0].allocation["devices"]["results"]
    return sum({name: int(name.partition("/s")[2] or 0) for name in (each["request"] for each in results)}.values())


@settings(max_examples=examples(150), deadline=None)
@given(cards=worlds, claim=claims(), policy=st.sampled_from(["binpack", "spread"]), names=st.permutations("abcd"))
def test_the_best_node_is_the_best_of_all_nodes_asked_alone(cards, claim, policy, names):
    world = dict(zip(names, cards, strict=False))
    alone = {name: answer for name, on_node in world.items() if (answer := decided({name: on_node}, claim, policy))}
    together = decided(world, claim, policy)
    if not alone:
        assert together is None
        return
    sign = 1 if policy == "spread" else -1
    best = min(alone, key=lambda name: (rank_of(alone[name]), sign * alone[name].score.node, name))
    assert together is not None
    assert (together.node, rank_of(together)) == (best, rank_of(alone[best]))
