"""The place that is free soonest if pods only end: small clusters, and random ones against all moments at which one ends."""

import random

import pytest
from msgspec.structs import replace

from controller.preemption import Preemption, soonest
from controller.preemption.tenants import expected_end
from tests.support.gang_requests import RACK, member, within
from tests.support.preemption.small_cluster import NOW, World

HOUR = 3_600


def ends_in(world, tenant, seconds):
    """Let the pod have a deadline so many seconds from now."""
    deadline = int(seconds + NOW - (expected_end(with_deadline(tenant, 0), NOW)))
    changed = with_deadline(tenant, deadline)
    for feed in (world.gangs.pod_changed, world.inventory.pod_changed, world.tenants.pod_changed):
        feed(tenant, changed)
    world.pods[changed.key] = changed
    return changed


def with_deadline(tenant, seconds):
    return replace(tenant, spec=replace(tenant.spec, active_deadline_seconds=seconds))


def asked(count):
    return member("large", count, memory="16Gi")


def vacancy(world, *members, least=None, topology=()):
    return soonest(world.preemption(), world.unit(*members, least=least, topology=topology))


def leaving(found):
    return [pod.metadata.name for pod in found.leaving]


def test_the_node_whose_pods_end_first():
    world = World(nodes=3)
    for node, hours in (("n00", 3), ("n01", 1), ("n02", None)):
        for card in (0, 1):
            tenant = world.run(f"{node}-{card}", node, [card])
            if hours is not None:
                ends_in(world, tenant, (hours + card) * HOUR)
    found = vacancy(world, asked(2))
    assert leaving(found) == ["n01-0", "n01-1"]
    assert found.ends == NOW + 2 * HOUR
    assert [decision.node for _, decision in found.placed] == ["n01"]
    assert leaving(vacancy(world, asked(1))) == ["n01-0"]


def test_where_no_end_is_known_the_fewest_leave_and_who_has_run_longest_first():
    world = World(nodes=2)
    world.run("a", "n00", [0], since=100)
    world.run("b", "n00", [1], since=200)
    world.run("c", "n01", [0], since=10)
    found = vacancy(world, asked(2))
    assert leaving(found) == ["c"]
    assert found.ends == float("inf")
    assert leaving(vacancy(World(nodes=1), asked(2))) == []


def test_none_where_it_fits_on_no_empty_node():
    world = World()
    world.run("a", "n00", [0])
    assert vacancy(world, asked(3)) is None


def test_a_gang_has_the_domain_that_is_free_first():
    world = World(nodes=4, labels=lambda number: {RACK: "ab"[number % 2]})
    early, late = ("n01", "n03"), ("n00", "n02")
    for node in late:
        ends_in(world, world.run(f"t-{node}", node, [0, 1]), 5 * HOUR)
    for node in early:
        ends_in(world, world.run(f"t-{node}", node, [0, 1]), HOUR)
    members = [member(f"m{number}", 2, memory="16Gi") for number in range(2)]
    found = vacancy(world, *members, topology=(within(RACK),))
    assert sorted(decision.node for _, decision in found.placed) == [*early]
    assert found.ends == NOW + HOUR


@pytest.mark.parametrize("seed", range(60))
def test_no_earlier_moment_would_do(seed):
    """At each moment the pods have left that end by then: the first at which the pod fits somewhere is the answer's."""
    chance = random.Random(seed)
    world = World(nodes=3, cards=4)
    for node in ("n00", "n01", "n02"):
        for card in range(4):
            if chance.random() < 0.9:
                tenant = world.run(f"{node}-{card}", node, [card], since=chance.randrange(1, 700))
                if chance.random() < 0.7:
                    ends_in(world, tenant, chance.randrange(60, 10 * HOUR))
    unit = world.unit(asked(chance.randrange(1, 5)))
    preemption: Preemption = world.preemption()
    if preemption.without(unit) is not None:
        return
    moments = sorted({expected_end(pod, NOW) for pod in world.pods.values()})
    found = soonest(preemption, unit)
    for at in moments:
        gone = [pod for pod in world.pods.values() if expected_end(pod, NOW) <= at]
        if preemption.without(unit, gone, world.tenants.freed_by(gone)) is not None:
            assert found.ends == at
            break
    assert preemption.without(unit, found.leaving, world.tenants.freed_by(found.leaving)) is not None
