"""Reclaim on random small clusters: plans held against all sets of victims, and what comes of one after the other.

The rules are written here again, from docs/preemption.md: use is counted from the pods that the test started.
"""

import itertools
import random
from collections import Counter

import pytest

from controller.decide import Decision, decide
from controller.preemption import NoPlan
from hami_dra.api.podstate import priority
from tests.property.test_preemption_plans import rank
from tests.support.examples import examples
from tests.support.gang_requests import OPTIONS, member
from tests.support.preemption.small_cluster import World

WORLDS = examples(150)
STORIES = examples(60)
SPACES = ("a", "b", "c")
SIZES = (4, 8, 16)
"""GiB of a card's 16."""
LEAST = 300
"""Seconds that a pod runs at least before one of no higher priority takes its devices."""


class Cluster:
    """A world, and what the test knows of it."""

    def __init__(self, dice):
        self.dice = dice
        self.nodes, self.cards = dice.randint(1, 3), dice.randint(1, 3)
        self.world = World(self.nodes, self.cards)
        self.owed = {}
        for space in SPACES:
            if dice.random() < 0.7:
                self.owed[space] = {"gpu": dice.randint(0, 4)}
                if dice.random() < 0.4:
                    self.owed[space]["gpumem"] = 1024 * 4 * dice.randint(0, 12)
                self.world.guarantee(space, **self.owed[space])
        self.amounts = {}
        """Pod → what it has."""
        self.ages = {}

    def start(self, name, space, node, cards, size, *, age, **options):
        pod = self.world.run(
            name, node, cards, namespace=space, memory=f"{size}Gi", cores=str(size * 6), since=age, **options
        )
        self.amounts[pod.key] = Counter(gpu=len(cards), gpumem=1024 * size * len(cards))
        self.ages[pod.key] = age
        return pod

    def end(self, pod):
        self.world.end(pod)
        del self.amounts[pod.key], self.ages[pod.key]

    @property
    def pods(self):
        return list(self.world.pods.values())

    def used(self, space, without=()):
        gone = {pod.key for pod in without}
        return sum(
            (amount for key, amount in self.amounts.items() if key.startswith(f"{space}/") and key not in gone),
            Counter(),
        )

    def leaves_others_theirs(self, space, chosen):
        for other, owed in self.owed.items():
            before, after = self.used(other), self.used(other, chosen)
            if other != space and any(after[key] < min(before[key], most) for key, most in owed.items()):
                return False
        return True

    def is_owed(self, space, asked):
        owed, used = self.owed.get(space, {}), self.used(space)
        return bool(owed) and all(used[key] + asked[key] <= most for key, most in owed.items())

    def may_go(self, pod, unit, *, reclaims):
        if priority(pod) < priority(unit):
            return True
        own = pod.metadata.namespace == unit.metadata.namespace
        owed = self.owed.get(unit.metadata.namespace, {})
        gives = any(self.amounts[pod.key][key] for key in owed)
        return reclaims and not own and gives and self.ages[pod.key] >= LEAST

    def fits_without(self, request, chosen):
        """The node where it fits; None: it does not."""
        with self.world.inventory.trial() as trial:
            trial.remove_all([each.metadata.uid for each in chosen], self.world.tenants.freed_by(chosen))
            answer = decide(self.world.inventory, request, OPTIONS)
            return answer.node if isinstance(answer, Decision) else None

    def best(self, request, *, reclaims):
        space = request.pod.metadata.namespace
        found = []
        for node in range(self.nodes):
            name = f"n{node:02}"
            here = [each for each in self.pods if each.spec.node_name == name]
            here = [each for each in here if self.may_go(each, request.pod, reclaims=reclaims)]
            for size in range(1, len(here) + 1):
                found += [
                    rank(chosen)
                    for chosen in itertools.combinations(here, size)
                    if self.leaves_others_theirs(space, chosen) and self.fits_without(request, chosen) == name
                ]
        return min(found, default=None)


def asks(name, space, count, size, level):
    spec = {"namespace": space, "priority": level}
    return member(name, count, memory=f"{size}Gi", cores=str(size * 6), spec=spec)


def filled(dice):
    cluster = Cluster(dice)
    left = {(node, card): 16 for node in range(cluster.nodes) for card in range(cluster.cards)}
    for number in range(dice.randint(2, 7)):
        node, card = dice.choice([*left])
        sizes = [size for size in SIZES if size <= left[node, card]]
        if sizes:
            size = dice.choice(sizes)
            left[node, card] -= size
            level, age = dice.choice([0, 0, 5, 50]), dice.choice([1, 100, 299, 300, 400, 700])
            cluster.start(f"p{number}", dice.choice(SPACES), f"n{node:02}", [card], size, age=age, priority=level)
    return cluster


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_plan_is_the_best_of_all_that_the_rules_allow(seed):
    dice = random.Random(seed)
    cluster = filled(dice)
    count, size, space = dice.randint(1, cluster.cards), dice.choice(SIZES), dice.choice(SPACES)
    request = asks("asks", space, count, size, dice.choice([0, 0, 5, 100]))
    if cluster.fits_without(request, ()) is not None:
        return
    plan, by_priority = cluster.world.plan(request), cluster.best(request, reclaims=False)
    best = by_priority
    if best is None and cluster.is_owed(space, Counter(gpu=count, gpumem=1024 * size * count)):
        best = cluster.best(request, reclaims=True)
    if best is None:
        assert isinstance(plan, NoPlan)
    else:
        assert rank(plan.victims) == best
        assert cluster.leaves_others_theirs(space, plan.victims)
        assert bool(plan.reclaims) == (by_priority is None)


def test_random_clusters_have_plans_of_every_kind():
    """Control: what the test above compares does occur."""
    kinds = Counter()
    for seed in range(60):
        dice = random.Random(seed)
        cluster = filled(dice)
        plan = cluster.world.plan(asks("asks", dice.choice(SPACES), 1, 16, dice.choice([0, 5])))
        kinds["none" if isinstance(plan, NoPlan) else "reclaim" if plan.reclaims else "priority"] += 1
    assert min(kinds["none"], kinds["reclaim"], kinds["priority"]) >= 3, kinds


@pytest.mark.parametrize("seed", range(STORIES))
def test_one_plan_after_the_other_comes_to_an_end_and_no_victim_evicts_its_evictor(seed):
    """Pods of three namespaces that all want to run, for ever; every one may be evicted at once."""
    dice = random.Random(seed)
    cluster = Cluster(dice)
    names = [f"p{number}" for number in range(dice.randint(4, 12))]
    wanted = {
        name: (dice.choice(SPACES), dice.randint(1, cluster.cards), dice.choice(SIZES), dice.choice([0, 0, 5, 50]))
        for name in names
    }
    waiting, evictions, idle = [*names], 0, 0
    while waiting and idle < len(waiting):
        name = waiting.pop(0)
        request = asks(name, *wanted[name])
        answer = decide(cluster.world.inventory, request, OPTIONS)
        victims, placed = (), answer
        if not isinstance(answer, Decision):
            plan = cluster.world.plan(request)
            if isinstance(plan, NoPlan):
                waiting.append(name)
                idle += 1
                continue
            assert cluster.leaves_others_theirs(wanted[name][0], plan.victims)
            victims, ((_, placed),) = plan.victims, plan.placed
        idle = 0
        for each in victims:
            cluster.end(each)
        evictions += len(victims)
        assert evictions < 20 * len(names), "it does not end"
        space, _, size, level = wanted[name]
        (entry,) = placed.allocations
        cards = [int(each["device"].removeprefix("gpu-")) for each in entry.allocation["devices"]["results"]]
        cluster.start(name, space, placed.node, cards, size, age=dice.choice([300, 500, 700]), priority=level)
        for each in victims:
            back = cluster.world.plan(asks(each.metadata.name, *wanted[each.metadata.name]))
            assert isinstance(back, NoPlan) or name not in {pod.metadata.name for pod in back.victims}
        waiting += [each.metadata.name for each in victims]
        dice.shuffle(waiting)
