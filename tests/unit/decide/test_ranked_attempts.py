"""Pods of several requests take the first of the sorted nodes, which may be searched in vain: each attempt gets further."""

from unittest.mock import patch

import pytest
from msgspec.structs import replace

from controller.allocation import Attempt, AttemptSpent
from controller.decide import Decision, Options, decide, decision, ranked_nodes
from hami_dra.api.resource import ResourceSlice
from tests.support.allocation import DRIVER, device, parse, slice_of
from tests.support.assumed import assume
from tests.unit.decide.test_attempts import request
from tests.unit.decide.test_hostile import furnished, of_one_rack

OPTIONS = Options(search_steps=2_000)


def roomy(inventory, name):
    """One rack with all cards: the search finds a solution at once."""
    cards = [device(f"gpu-{index}", rack=0, serial=index) for index in range(128)]
    changed = parse(slice_of(*cards, name=f"slice-{name}", pool=name, nodeName=name), ResourceSlice)
    inventory.slice_changed(changed, changed)


def attempts_of(inventory, wanted, options, first=500, most=60):
    steps = first
    for number in range(1, most):
        attempt = Attempt(min(steps, options.search_steps), is_last=steps >= options.search_steps)
        try:
            return decide(inventory, wanted, replace(options, attempt=attempt)), number
        except AttemptSpent:
            steps *= 2
    return None, most


@pytest.mark.parametrize("seen", [0, 12], ids=["rare shape", "frequent shape"])
def test_a_pod_of_several_requests_is_decided_after_some_attempts(seen):
    inventory = furnished(3)
    roomy(inventory, "node-2")
    free = of_one_rack(17)
    for each in free:  # equal requests, no constraint: the same columns, and so the same sorted nodes
        each["spec"]["devices"].pop("constraints")
    easy = request(*free, pod="easy")
    for _ in range(seen):
        assert isinstance(decide(inventory, easy, Options()), (Decision,))
    found, _ = attempts_of(inventory, request(*of_one_rack(17), pod="hard"), OPTIONS)
    assert found is not None, "no progress in 60 attempts"
    assert isinstance(found, Decision), found.message
    assert found.node == "node-2"


def test_without_attempts_as_many_nodes_are_tried_before_it_is_given_up():
    def answer():
        inventory = furnished(5)
        roomy(inventory, "node-3")
        return decide(inventory, request(*of_one_rack(17)), OPTIONS)

    with patch.object(decision, "ranked_by_shape", return_value=None):
        full = answer()
    inventory = furnished(5)
    roomy(inventory, "node-3")
    with patch.object(ranked_nodes, "_OFTEN", 0):
        decide(inventory, request(*of_one_rack(17)), OPTIONS)
        with patch.object(ranked_nodes.ShapeRanking.__init__, "__defaults__", (0,)):
            own = decide(inventory, request(*of_one_rack(17)), OPTIONS, decision.Alike())
    assert type(own) is type(full), (own, full)


def test_a_pod_that_is_given_up_is_given_up_again_after_each_change():
    """No other pod is needed: its own attempts make its shape a frequent one."""
    inventory = furnished(5)
    wanted = request(*of_one_rack(17))
    _, taken = attempts_of(inventory, wanted, OPTIONS)
    counts = [taken]
    for _ in range(6):
        result = {"request": "r", "driver": DRIVER, "pool": "node-2", "device": "gpu-0"}
        assume(inventory, "somebody", {"devices": {"results": [result]}})
        inventory.forget("somebody")
        _, taken = attempts_of(inventory, wanted, OPTIONS, first=2_000, most=20)
        counts.append(taken)
    assert max(counts[1:]) < 5, counts
