"""Plans on random small clusters with shared devices, held against all sets of victims of all nodes."""

import itertools
import random

import pytest

from controller.decide import Decision, decide
from controller.gangs import UnitDecision, decide_unit
from controller.preemption import NoPlan, PreemptionPlan
from controller.preemption.tenants import started
from tests.cards import claim, request
from tests.support.examples import examples
from tests.support.gang_requests import OPTIONS, gang, member
from tests.support.preemption.small_cluster import World

WORLDS = 60
GANGS = examples(60)
HOST = "kubernetes.io/hostname"
AMOUNTS = ["4Gi", "8Gi", "12Gi", "16Gi"]


def rank(pods):
    """As documented, without budgets and gangs."""
    highest = max(each.spec.priority for each in pods)
    earliest = min(started(each) for each in pods if each.spec.priority == highest)
    return highest, sum(each.spec.priority + 2**31 for each in pods), len(pods), -earliest


def best_of_all(world, request, tenants):
    """The least rank of a set of victims on one node after which the pod fits there; None: there is none."""
    ranks = []
    for name in {each.spec.node_name for each in tenants}:
        here = [
            each for each in tenants if each.spec.node_name == name and each.spec.priority < request.pod.spec.priority
        ]
        for size in range(1, len(here) + 1):
            for chosen in itertools.combinations(here, size):
                with world.inventory.trial() as trial:
                    for each in chosen:
                        trial.remove(each.metadata.uid, world.tenants.freed_by([each]))
                    answer = decide(world.inventory, request, OPTIONS)
                    if isinstance(answer, Decision) and answer.node == name:
                        ranks.append(rank(chosen))
    return min(ranks, default=None)


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_plan_is_the_best_of_all_sets_of_victims(seed):
    dice = random.Random(seed)
    nodes, cards = dice.randint(1, 3), dice.randint(1, 3)
    world = World(nodes, cards)
    tenants = []
    left = {(node, card): 16 for node in range(nodes) for card in range(cards)}
    for number in range(dice.randint(1, 6)):
        at = dice.choice([*left])
        amount = dice.choice([each for each in AMOUNTS if int(each[:-2]) <= left[at]] or ["0Gi"])
        left[at] -= int(amount[:-2])
        if amount != "0Gi":
            tenants.append(
                world.run(
                    f"p{number}",
                    f"n0{at[0]}",
                    [at[1]],
                    priority=dice.choice([0, 0, 5, 50, 200]),
                    since=dice.randint(1, 700),
                    memory=amount,
                    cores="10",
                )
            )
    request = member("urgent", dice.randint(1, cards), memory=dice.choice(AMOUNTS), cores="10", spec={"priority": 100})
    if isinstance(decide(world.inventory, request, OPTIONS), Decision):
        return
    plan, best = world.plan(request), best_of_all(world, request, tenants)
    if best is None:
        assert isinstance(plan, NoPlan)
    else:
        assert rank(plan.victims) == best


def with_tenants(dice, world, nodes, cards):
    """Pods of some priorities, of which some are protected together by a budget."""
    left = {(node, card): 16 for node in range(nodes) for card in range(cards)}
    for number in range(dice.randint(1, 6)):
        node, card = at = dice.choice([*left])
        sizes = [amount for amount in AMOUNTS if int(amount[:-2]) <= left[at]]
        if sizes:
            amount = dice.choice(sizes)
            left[at] -= int(amount[:-2])
            labels = {"app": "db"} if dice.random() < 0.3 else {}
            priority = dice.choice([0, 5, 50, 200])
            world.run(f"p{number}", f"n0{node}", [card], priority=priority, memory=amount, cores="1", labels=labels)
    if dice.random() < 0.5:
        world.protect(dice.randint(0, 2), app="db")


def unlike_members(dice, nodes, cards):
    """Members that ask for different parts of cards on different nodes; some share a claim."""
    shared = claim("shared", [request(memory=dice.choice(AMOUNTS), cores="1")]) if dice.random() < 0.3 else None
    members = []
    for number in range(dice.randint(2, 3)):
        spec = {"priority": 100}
        if dice.random() < 0.5:
            spec["nodeSelector"] = {HOST: str(dice.randrange(nodes))}
        wanted = {"memory": dice.choice(AMOUNTS), "cores": "1"}
        claims = [shared] if shared is not None and number < 2 else None
        members.append(member(f"urgent-{number}", dice.randint(1, cards), claims=claims, spec=spec, **wanted))
    return members


def makes_room(world, unit, chosen):
    """Whether the gang fits without these pods."""
    with world.inventory.trial() as trial:
        trial.remove_all([each.metadata.uid for each in chosen], world.tenants.freed_by(chosen))
        answer = decide_unit(world.inventory, unit, OPTIONS)
        return isinstance(answer, UnitDecision) and len(answer.placed) >= unit.least


def may_go_together(world, chosen):
    """Whether the budget allows it."""
    protected = sum(each.metadata.labels.get("app") == "db" for each in chosen)
    return all(protected <= budget.status.disruptions_allowed for budget in world.budgets)


@pytest.mark.parametrize("seed", range(GANGS))
def test_a_gang_has_a_plan_in_every_order_of_its_members_or_in_none(seed):
    dice = random.Random(seed)
    nodes, cards = dice.randint(1, 3), dice.randint(1, 2)
    world = World(nodes, cards, labels=lambda number: {HOST: str(number)})
    with_tenants(dice, world, nodes, cards)
    members = unlike_members(dice, nodes, cards)
    least = dice.randint(1, len(members))
    lower = [each for each in world.pods.values() if each.spec.priority < 100]
    sets = [chosen for size in range(len(lower) + 1) for chosen in itertools.combinations(lower, size)]
    for order in itertools.permutations(members):
        unit = gang(*order, least=least)
        if makes_room(world, unit, ()):
            continue
        plan = world.plan(*order, least=least)
        exists = any(makes_room(world, unit, chosen) for chosen in sets if may_go_together(world, chosen))
        assert isinstance(plan, PreemptionPlan) == exists, [each.pod.metadata.name for each in order]
        if exists:
            assert may_go_together(world, plan.victims)
            assert makes_room(world, unit, plan.victims)
            assert all(each in lower for each in plan.victims)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_known_of_devices_by_difference_is_what_a_fresh_look_says(seed):
    dice = random.Random(seed)
    world = World(3, 3)
    running = []
    for number in range(60):
        if running and dice.random() < 0.45:
            world.end(running.pop(dice.randrange(len(running))))
        else:
            node, card = dice.randrange(3), dice.randrange(3)
            running.append(
                world.run(f"p{number}", f"n0{node}", [card], priority=dice.randint(0, 9), memory="1Gi", cores="1")
            )
        if dice.random() < 0.5:
            known = [column.tolist() for column in world.tenants.held().columns(world.inventory.devices)]
            fresh = world.fresh_tenants()
            assert known == [column.tolist() for column in fresh.held().columns(world.inventory.devices)]
            assert [world.tenants.summary(f"n0{each}") for each in range(3)] == [
                fresh.summary(f"n0{each}") for each in range(3)
            ]
