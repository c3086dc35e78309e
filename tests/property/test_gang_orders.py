"""Whatever runs as single pods in some order runs as a gang: members that make each other fit. Brute force over the orders of small gangs."""

import itertools
import random

import pytest

from controller.decide import Decision, decide
from controller.gangs import UnitDecision, decide_gang
from tests.cards import pod
from tests.support.examples import examples
from tests.support.gang_requests import OPTIONS, cluster, gang, held, member

ZONE = "zone"
ROLES = ("leader", "worker", "helper")


def near(role):
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"role": role}}}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def apart(role):
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"role": role}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(role, skew=1):
    selector = {"matchLabels": {"role": role}}
    constraint = {"maxSkew": skew, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [constraint]}


def with_role(name, role, count=1, **spec):
    found = member(name, count, spec={"labels": {"role": role}, **spec})
    assert found.pod.metadata.labels["role"] == role
    return found


def world(zones, cards=2, running=()):
    """Nodes in these zones. `running`: (role, node) of pods that are there."""
    inventory = cluster(len(zones), cards, labels=lambda number: {ZONE: zones[number]})
    for number, (role, node) in enumerate(running):
        inventory.assume_pod(pod(f"old{number}", labels={"role": role}), f"n{node:02}")
    return inventory


def placed_alone(inventory, members):
    """How many of the members find a place, one after the other, each tried again while others are placed."""
    waiting, placed = [*members], 0
    with inventory.trial() as trial:
        while True:
            for request in waiting:
                if isinstance(answer := decide(inventory, request, OPTIONS), Decision):
                    trial.place(request.pod, answer.node, answer.holdings)
                    waiting.remove(request)
                    placed += 1
                    break
            else:
                return placed


def runs_in_some_order(inventory, members):
    return any(placed_alone(inventory, order) == len(members) for order in itertools.permutations(members))


def check_order(inventory, answer):
    """Each place fits next to those before it, as kube-scheduler will see them."""
    with inventory.trial() as trial:
        for request, decision in answer.placed:
            assert inventory.rules.node_fit(request.pod).mask[inventory.nodes.index_of(decision.node)]
            trial.place(request.pod, decision.node, decision.holdings)


def runs_as_a_gang(inventory, members):
    before = held(inventory)
    answer = decide_gang(inventory, gang(*members), OPTIONS)
    assert held(inventory) == before
    if isinstance(answer, UnitDecision):
        check_order(inventory, answer)
    return isinstance(answer, UnitDecision)


@pytest.mark.parametrize("worker_first", [False, True])
def test_a_worker_that_must_run_near_its_leader_runs_with_it(worker_first):
    members = [with_role("leader", "leader"), with_role("worker", "worker", **near("leader"))]
    assert runs_as_a_gang(world("ab"), members[::-1] if worker_first else members)


def test_a_chain_of_affinities_is_placed_from_its_end():
    members = [
        with_role("c", "helper", **near("worker")),
        with_role("b", "worker", **near("leader")),
        with_role("a", "leader", 2),
    ]
    assert runs_as_a_gang(world("aab"), members)


def test_three_members_with_an_uneven_hard_spread_run():
    members = [with_role(f"p{number}", "worker", **spread("worker")) for number in range(3)]
    assert runs_as_a_gang(world("ab", running=[("worker", 0)]), members)


def test_what_refers_to_no_member_is_refused_by_numbers_alone():
    members = [with_role(f"p{number}", "worker", **near("nobody")) for number in range(3)]
    answer = decide_gang(world("ab"), gang(*members), OPTIONS)
    assert "0 of 3 members fit at once" in answer.message


@pytest.mark.parametrize("seed", range(examples(10)))
def test_what_runs_as_single_pods_in_some_order_runs_as_a_gang(seed):
    """Ten worlds each."""
    draw = random.Random(seed)
    for _ in range(10):
        zones = draw.choice(["a", "ab", "aab", "abc"])
        running = [(draw.choice(ROLES), draw.randrange(len(zones))) for _ in range(draw.choice([0, 0, 1, 2]))]
        inventory = world(zones, draw.choice([1, 2]), running)
        members = []
        for number in range(draw.choice([2, 3, 3, 4])):
            spec = draw.choice(
                [dict, lambda: near(draw.choice(ROLES)), lambda: spread(draw.choice(ROLES)), lambda: apart("helper")]
            )()
            members.append(with_role(f"p{number}", draw.choice(ROLES), draw.choice([1, 1, 2]), **spec))
        if runs_in_some_order(inventory, members):
            assert runs_as_a_gang(inventory, members), [(each.pod.metadata.labels, each.pod.spec) for each in members]
