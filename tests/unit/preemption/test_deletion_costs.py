"""Which pods of a ReplicaSet go first: against all ways to scale it in, on small random nodes."""

import itertools
import random
import sys

import pytest
from msgspec.structs import replace

from controller.inventory import DeviceId
from controller.preemption import deletion_costs
from hami_dra.api.meta import OwnerReference
from tests.cards import pod
from tests.support.examples import examples


def of_set(name, owner="rs"):
    found = pod(name, uid=name)
    owners = (OwnerReference(kind="ReplicaSet", name=owner, uid=owner, controller=True),)
    return replace(found, metadata=replace(found.metadata, owner_references=owners))


def device(number, node="a"):
    return DeviceId("d", node, f"gpu-{number}")


def test_the_worked_example():
    on_a = [(of_set("p0"), [device(0)]), (of_set("p1"), [device(0)]), (of_set("p2"), [device(1)])]
    assert deletion_costs(on_a) == {"p0": 201, "p1": 201, "p2": 200}
    on_b = [(of_set("p3"), [device(0, "b")]), (pod("other", uid="o"), [device(0, "b")])]
    assert deletion_costs(on_b) == {"p3": 1_010_000}


def test_counts_are_bounded_so_that_a_cost_is_an_int32():
    crowd = [(pod(f"o{number}", uid=f"o{number}"), [device(0)]) for number in range(300)]
    assert deletion_costs([(of_set("p"), [device(0)]), *crowd]) == {"p": 99_990_000}


def test_pods_that_hold_the_same_devices_are_compared_once():
    """Each of another set: all pairs would be a quarter of a million."""
    compared = 0

    def count(_frame, event, argument):
        nonlocal compared
        compared += event == "c_call" and argument.__name__ == "isdisjoint"

    crowd = [(of_set(f"p{number}", f"rs{number}"), [device(number % 4)]) for number in range(500)]
    sys.setprofile(count)
    try:
        costs = deletion_costs(crowd)
    finally:
        sys.setprofile(None)
    assert {*costs.values()} == {99_990_000}
    assert compared == 4 * 500


@pytest.mark.parametrize("seed", range(examples(40)))
def test_on_one_node_no_scale_in_frees_more_devices(seed):
    """One pod holds one device, so that costs alone decide: of each number of pods that go, none frees more."""
    draw = random.Random(seed)
    ours = [(of_set(f"p{number}"), [device(draw.randrange(4))]) for number in range(draw.randint(1, 6))]
    others = [
        (pod(f"o{number}", uid=f"o{number}"), [device(draw.randrange(4))]) for number in range(draw.randint(0, 3))
    ]
    costs = deletion_costs([*ours, *others])
    order = sorted(ours, key=lambda each: costs[each[0].metadata.uid])
    for count in range(len(ours) + 1):
        best = max(freed(gone, ours, others) for gone in itertools.combinations(ours, count))
        assert freed(order[:count], ours, others) == best


def freed(gone, ours, others):
    left = {each for pod, [each] in [*ours, *others] if (pod, [each]) not in gone}
    return len({each for _, [each] in gone} - left)
