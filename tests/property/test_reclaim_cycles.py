"""Whether pods can evict each other for ever, in any order and with any victims that the rules allow.

The rules of docs/preemption.md, for pods that never end and devices of one kind. `test_reclaim_plans` plays the real planner,
which chooses one of these orders and the best victims; here all of them are searched, in clusters of a few pods.

A cycle needs a namespace that falls below its guarantee because a smaller pod of it evicts a larger one of it
(docs/design/preemption.md): without that step there is none, and with it they are rare.
"""

import itertools
import random
from typing import NamedTuple

from tests.support.examples import examples

WORLDS = examples(1_500)
STEPS = 20_000
"""Moves after which the search of one world ends."""


class Asks(NamedTuple):
    space: str
    size: int
    priority: int
    nodes: tuple[int, ...]
    """Where it may run."""


class World(NamedTuple):
    pods: list[Asks]
    devices: list[int]
    """Of each node."""
    owed: dict[str, int]


KNOWN = World(
    [
        Asks("c", 3, 1, (1, 0)),
        Asks("c", 1, 2, (1, 0)),
        Asks("b", 1, 2, (1, 0)),
        Asks("c", 1, 0, (1, 0)),
        Asks("a", 2, 0, (0,)),
        Asks("a", 2, 0, (0, 1)),
        Asks("a", 1, 3, (0, 1)),
    ],
    [3, 3],
    {"a": 2, "b": 0, "c": 2},
)
"""Of 25,838 random worlds one of the two that have a cycle."""


class Rules(NamedTuple):
    protects: bool = True
    """A plan leaves every other namespace what it is owed."""
    falls: bool = True
    """A namespace may fall below its guarantee because of its own pods."""


def random_world(seed):
    dice = random.Random(seed)
    devices = [dice.randint(1, 3) for _ in range(dice.randint(1, 3))]
    spaces = dice.choice(["ab", "abc"])
    pods = [
        Asks(
            dice.choice(spaces),
            dice.choice([1, 1, 2, 3]),
            dice.randrange(4),
            tuple(dice.sample(range(len(devices)), dice.randint(1, len(devices)))),
        )
        for _ in range(dice.randint(3, 7))
    ]
    return World(pods, devices, {space: dice.choice([0, 0, 1, 2, 3]) for space in spaces})


def used(world, state):
    total = dict.fromkeys(world.owed, 0)
    for pod, node in zip(world.pods, state, strict=True):
        total[pod.space] += pod.size if node is not None else 0
    return total


def after(world, state, rules):
    """All that the clusters may be like after one more pod has its place. `state`: the node of each pod, or None."""
    has = used(world, state)
    for number, pod in enumerate(world.pods):
        if state[number] is not None:
            continue
        free = [
            devices - sum(each.size for each, at in zip(world.pods, state, strict=True) if at == node)
            for node, devices in enumerate(world.devices)
        ]
        found = [(node, ()) for node in pod.nodes if free[node] >= pod.size]
        found = found or [*plans(world, state, number, free, rules, reclaims=False)]
        if not found and has[pod.space] + pod.size <= world.owed[pod.space]:
            found = [*plans(world, state, number, free, rules, reclaims=True)]
        for node, victims in found:
            yield tuple(node if each == number else None if each in victims else at for each, at in enumerate(state))


def plans(world, state, number, free, rules, *, reclaims):
    """All places with victims of which none can be left out."""
    pod, has = world.pods[number], used(world, state)
    for node in pod.nodes:
        here = [
            each
            for each, at in enumerate(state)
            if at == node
            and (world.pods[each].priority < pod.priority or (reclaims and world.pods[each].space != pod.space))
        ]
        for count in range(1, len(here) + 1):
            for victims in itertools.combinations(here, count):
                room = free[node] + sum(world.pods[each].size for each in victims)
                is_least = all(room - world.pods[each].size < pod.size for each in victims)
                if room >= pod.size and is_least and leaves_theirs(world, pod, victims, has, rules):
                    yield node, victims


def leaves_theirs(world, pod, victims, has, rules):
    left = dict(has)
    for each in victims:
        left[world.pods[each].space] -= world.pods[each].size
    left[pod.space] += pod.size
    return all(
        left[space] >= min(has[space], owed) or (rules.falls if space == pod.space else not rules.protects)
        for space, owed in world.owed.items()
    )


def has_cycle(world, rules):
    start = (None,) * len(world.pods)
    way, done, steps = {start: after(world, start, rules)}, set(), 0
    while way and steps < STEPS:
        steps += 1
        state = next(reversed(way))
        following = next(way[state], None)
        if following is None:
            del way[state]
            done.add(state)
        elif following in way:
            return True
        elif following not in done:
            way[following] = after(world, following, rules)
    return False


def test_as_long_as_no_namespace_falls_below_its_guarantee_by_itself_there_is_no_cycle():
    worlds = [KNOWN, *map(random_world, range(WORLDS))]
    assert [world for world in worlds if has_cycle(world, Rules(falls=False))] == []


def test_where_a_smaller_pod_evicts_a_larger_one_of_its_namespace_there_is_one():
    """Known, and bounded: each round takes devices back, and they are taken from no pod before it has run for five minutes."""
    assert has_cycle(KNOWN, Rules())


def test_control_without_what_is_owed_being_kept_there_are_many():
    assert sum(has_cycle(random_world(seed), Rules(protects=False)) for seed in range(40)) >= 5
