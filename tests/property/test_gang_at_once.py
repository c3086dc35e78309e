"""Members alike are decided by what has changed since the one before; each decided in full, the answer is the same."""

import random
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from controller.allocation import Attempt
from controller.decide import Decision, decide, decision
from controller.gangs import TopologyConstraint, UnitDecision, decide_gang
from controller.gangs.member_placements import MemberPlacements
from tests.cards import CLASS, DRIVER, card, claim, node, request, slice_of, whole
from tests.property.test_gang_decisions import part
from tests.support.assumed import held_by
from tests.support.examples import examples
from tests.support.gang_requests import OPTIONS, cluster, gang, held, member
from tests.support.quotas import quota_object

KEYS = ("kubernetes.io/hostname", "rack", "zone", "no-node-has")
AMOUNTS = (
    {},
    {"memory": "1Mi", "cores": "0"},
    {"memory": "3Gi", "cores": "20"},
    {"memory": "9Gi", "cores": "0"},
    {"memory": "16Gi", "cores": "100"},
)
MOST_STEPS = 1_000_000


def world(draw):
    """Nodes with shared cards, whole ones, and cards that are published whole and in halves; some in use."""
    divided = draw.random() < 0.3
    inventory = cluster(0)
    fleet = linked(draw) if draw.random() < 0.3 else None
    """The cards of every node, if all are alike."""
    for number in range(draw.randint(2, 12)):
        name = f"n{number:02}"
        labels = {KEYS[0]: name, "rack": f"r{number // 3}", "zone": f"z{number % 2}"}
        inventory.node_changed(None, node(name, labels=labels))
        devices = fleet or [device(draw, index) for index in range(draw.randint(1, 4))]
        cut = [*range(draw.randint(0, 2))] if divided and not fleet else []
        for index in cut:
            devices += [part(f"whole-{index}", "whole", index, 2)]
            devices += [part(f"half-{index}-{half}", "half", index, 1) for half in range(2)]
        sets = [{"name": f"card-{index}", "counters": {"parts": {"value": "2"}}} for index in cut]
        inventory.slice_changed(None, slice_of(name, devices, count=2))
        counters = slice_of(name, [], name=f"{name}-sets", count=2, nodeName=name, sharedCounters=sets)
        inventory.slice_changed(None, counters)
    if draw.random() < 0.2:
        inventory.quota_changed(None, quota_object({"nvidia.com/gpu": draw.randint(3, 30)}))
    for number in range(0 if fleet else draw.randint(0, 6)):
        tenant = member(f"t{number}", node_policy=draw.choice(["binpack", "spread"]), **draw.choice(AMOUNTS))
        answer = decide(inventory, tenant, OPTIONS)
        if isinstance(answer, Decision):
            inventory.usage.assume(answer.holdings)
            inventory.assume_pod(tenant.pod, answer.node)
    return inventory


def device(draw, index):
    if draw.random() < 0.2:
        return whole(index)
    taints = {"taints": [{"key": "mine", "effect": "NoSchedule"}]} if draw.random() < 0.1 else {}
    return card(index, memory=draw.choice(["16Gi", "24Gi"]), shares=draw.choice(["2", "10"]), **taints)


def linked(draw):
    """Cards in islands: what a node gives depends on which of them are idle."""
    found = [card(index, shares="2") for index in range(draw.choice([4, 8]))]
    islands = draw.choice([2, 3, 4])
    for index, each in enumerate(found):
        if draw.random() < 0.9:
            each["attributes"]["hami.io/linkGroup"] = {"int": index // islands}
    return found


def relation(draw):
    term = {"topologyKey": draw.choice(KEYS[:3]), "labelSelector": {"matchLabels": {"role": draw.choice("ab")}}}
    weighted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term}
    return draw.choice(
        [
            {"affinity": {draw.choice(["podAffinity", "podAntiAffinity"]): draw.choice([required, weighted])}},
            {"topologySpreadConstraints": [constraint]},
            {"nodeSelector": {"zone": draw.choice(["z0", "z1"])}},
        ]
    )


def kind(draw, shared):
    """Return what makes a member of one kind by its name. `shared`: a claim that some kinds use beside their own."""
    requests = [
        request(f"r{number}", count=draw.choice([1, 1, 1, 2, 3]), **draw.choice(AMOUNTS[draw.choice([0, 1, 1]) :]))
        for number in range(draw.choice([1, 1, 2, 2, 3]))
    ]
    if draw.random() < 0.1:
        requests[0]["exactly"]["selectors"] = [{"cel": {"expression": f'"x" in device.attributes["{DRIVER}"]'}}]
    if draw.random() < 0.15:
        alternatives = [{"name": f"{count}", "deviceClassName": CLASS, "count": count} for count in (2, 1)]
        requests[0] = {"name": "list", "firstAvailable": alternatives}
    parameters = {"driver": DRIVER, "parameters": {"apiVersion": "x", "kind": "y", "number": draw.randint(0, 1)}}
    config = [{"requests": ["r1"], "opaque": parameters}] if len(requests) == 3 and draw.random() < 0.3 else []
    claims = draw.choice([1, 1, 2])
    spec = {"labels": {"role": draw.choice("ab")}}
    amounts = {"cpu": draw.choice(["0", "500m", "2"])}
    container = {"name": "main", "resources": {"requests": amounts}}
    if draw.random() < 0.1:
        container["ports"] = [{"hostPort": 80, "containerPort": 80}]
    spec |= {"containers": [container], **(relation(draw) if draw.random() < 0.2 else {})}
    policies = {
        "node_policy": draw.choice(["binpack", "binpack", "spread", "spread", "fair-share"]),
        "device_policy": draw.choice(["binpack", "spread", "spread", "mutex", "numa", "topology-aware", "fair-share"]),
    }
    extra = (shared,) if draw.random() < 0.1 else ()

    def make(name):
        if claims == 1 or len(requests) == 1:
            own = (claim(f"{name}-a", requests, config=config),)
        else:
            own = (claim(f"{name}-a", requests[:1]), claim(f"{name}-b", requests[1:]))
        return member(name, claims=(*own, *extra), spec=spec, **policies)

    return make


def question(draw):
    kinds = [kind(draw, claim("shared")) for _ in range(draw.choice([1, 1, 2, 3]))]
    count = draw.choice([2, 5, 10, 25])
    members = [draw.choice(kinds)(f"p{number}") for number in range(count)]
    keys = draw.sample(KEYS, draw.randint(0, 2))
    required = draw.random() < 0.4
    topology = tuple([TopologyConstraint(key, required and not number, "a") for number, key in enumerate(keys)])
    return gang(*members, least=draw.choice([1, count // 2, count]), topology=topology)


def answer_of(inventory, wanted):
    before = held(inventory)
    answer = decide_gang(inventory, wanted, replace(OPTIONS, attempt=Attempt(MOST_STEPS, is_last=True)))
    assert held(inventory) == before
    return answer


@pytest.mark.parametrize("seed", range(examples(10)))
def test_by_difference_as_in_full(seed):
    """Twelve gangs each."""
    draw = random.Random(seed)
    for _ in range(12):
        inventory, wanted = world(draw), question(draw)
        for entry in (entry for each in wanted.members for entry in each.claims):
            inventory.claim_changed(None, entry.claim)  # quotas count what is known
        by_difference = answer_of(inventory, wanted)
        with (
            patch.object(MemberPlacements, "_alike_of", return_value=None),
            patch.object(decision, "fast_path_of", return_value=None),
            patch.object(decision, "ranked_by_shape", return_value=None),
        ):
            in_full = answer_of(inventory, wanted)
        assert by_difference == in_full
        if isinstance(by_difference, UnitDecision):
            for _, placed in by_difference.placed:
                assert all(entry.holdings == held_by(entry.allocation) for entry in placed.allocations)
