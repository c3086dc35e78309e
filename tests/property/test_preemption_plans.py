"""Plans on random small clusters with shared devices, held against all sets of victims of all nodes."""

import itertools
import random

import pytest

from controller.decide import Decision, decide
from controller.preemption import NoPlan
from controller.preemption.tenants import started
from tests.support.gang_requests import OPTIONS, member
from tests.support.preemption.small_cluster import World

WORLDS = 60
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
