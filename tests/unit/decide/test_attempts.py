"""A decision that takes several attempts: each costs at most so many steps; nodes are searched once, and once more when they changed."""

import pytest
from msgspec.structs import replace

from controller.allocation import Attempt, AttemptSpent, search
from controller.decide import (
    Decision,
    Options,
    PodClaim,
    SchedulingRequest,
    Unschedulable,
    decide,
    decision,
)
from controller.decide.node_search import STEPS_PER_NODE
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim, ResourceSlice
from tests.support.allocation import DRIVER, claim, device, exactly, parse, slice_of
from tests.support.assumed import assume
from tests.unit.decide.test_hostile import furnished, of_one_rack

NODES = 12
OPTIONS = Options()
FIRST = 500
"""Steps of the first attempt."""
IMPOSSIBLE = claim(exactly(count=17), constraints=[{"matchAttribute": f"{DRIVER}/rack"}])


@pytest.fixture
def searched(monkeypatch):
    """Names of the nodes in the order of their searches."""
    seen = []
    run = search.Search.run

    def noted(self):
        if self._look_up:
            seen.append(self._node.metadata.name)
        return run(self)

    monkeypatch.setattr(search.Search, "run", noted)
    return seen


def request(*claims, pod="pod", **rest):
    pod = parse({"metadata": {"name": pod, "namespace": "ns", "uid": pod}}, Pod)
    parsed = [parse(each, ResourceClaim) for each in claims]
    return SchedulingRequest(pod, tuple(PodClaim(each.metadata.name, each) for each in parsed), **rest)


class Counter:
    """Steps of all searches: so far, and the most of one turn."""

    def __init__(self, monkeypatch):
        self.steps = self.longest = self._began = 0
        step = search.Search.step

        def counted(searched, cost=1):
            self.steps += cost
            step(searched, cost)

        monkeypatch.setattr(search.Search, "step", counted)

    def turn_is_over(self):
        self.longest, self._began = max(self.longest, self.steps - self._began), self.steps


def decided(inventory, wanted, options=OPTIONS, first=FIRST, between=lambda: None):
    """The answer, and how many attempts it took. `between`: called after each."""
    steps = first
    for attempts in range(1, 1_000):
        attempt = Attempt(min(steps, options.search_steps), is_last=steps >= options.search_steps)
        try:
            return decide(inventory, wanted, replace(options, attempt=attempt)), attempts
        except AttemptSpent:
            steps *= 2
        finally:
            between()
    raise AssertionError("no progress")


def test_no_node_is_searched_again_that_was_searched_to_the_end(searched):
    inventory = furnished(NODES)
    answer, attempts = decided(inventory, request(IMPOSSIBLE))
    assert attempts > 1
    assert {*searched} == {f"node-{number}" for number in range(NODES)}
    assert len(searched) <= NODES + attempts - 1, "the node at which an attempt ends begins anew, no other"
    assert answer == decide(inventory, request(IMPOSSIBLE), Options())


def test_an_equal_claim_is_refused_without_a_search_and_a_changed_node_is_searched_again(searched):
    inventory = furnished(NODES)
    decided(inventory, request(IMPOSSIBLE))
    searched.clear()
    renamed = {**IMPOSSIBLE, "metadata": {**IMPOSSIBLE["metadata"], "name": "other", "uid": "other"}}
    answer, _ = decided(inventory, request(renamed))
    assert isinstance(answer, Unschedulable)
    assert searched == []
    result = {"request": "r", "driver": DRIVER, "pool": "node-3", "device": "gpu-0"}
    assume(inventory, "somebody", {"devices": {"results": [result]}})
    assert isinstance(decided(inventory, request(IMPOSSIBLE))[0], Unschedulable)
    assert searched == ["node-3"]
    searched.clear()
    fewer = claim(exactly(count=16), constraints=[{"matchAttribute": f"{DRIVER}/rack"}])
    assert isinstance(decided(inventory, request(fewer))[0], Decision)


def test_a_node_that_can_meet_the_claim_now_is_found(searched):
    inventory = furnished(2)
    decided(inventory, request(IMPOSSIBLE))
    larger = [device(f"gpu-{index}", rack=0, serial=index) for index in range(20)]
    changed = parse(slice_of(*larger, name="slice-node-1", pool="node-1", nodeName="node-1"), ResourceSlice)
    inventory.slice_changed(changed, changed)
    answer, _ = decided(inventory, request(IMPOSSIBLE))
    assert isinstance(answer, Decision)
    assert answer.node == "node-1"


def test_searches_that_are_given_up_are_remembered_too(searched):
    inventory = furnished(6)
    options = Options(search_steps=500)
    first, _ = decided(inventory, request(*of_one_rack(17)), options)
    assert sorted({*searched}) == [f"node-{number}" for number in range(4)], "four that are given up end the decision"
    assert "given up after" in first.message
    searched.clear()
    again, attempts = decided(inventory, request(*of_one_rack(17)), options)
    assert (attempts, searched) == (1, [])
    assert again.message == first.message


# --- one long search ---------------------------------------------------------------------------------------------------------

LONG = Options(search_steps=16_000)


@pytest.mark.parametrize(
    "claims", [of_one_rack(17), of_one_rack(16), [IMPOSSIBLE]], ids=["given up", "found", "hopeless"]
)
def test_no_attempt_is_longer_than_it_may_be(monkeypatch, claims):
    expected = decide(furnished(3), request(*claims), LONG)
    counter, inventory = Counter(monkeypatch), furnished(3)
    answer, attempts = decided(inventory, request(*claims), LONG, between=counter.turn_is_over)
    assert answer == expected or "given up after" in answer.message
    assert attempts == 1 or counter.longest <= 1.25 * LONG.search_steps + 4_096 + 2 * STEPS_PER_NODE


def test_attempts_that_double_cost_little_more_than_one_that_is_long_enough(monkeypatch):
    inventory, wanted = furnished(1), request(*of_one_rack(17))
    counter = Counter(monkeypatch)
    expected = decide(furnished(1), wanted, LONG)
    at_once, counter.steps = counter.steps, 0
    answer, attempts = decided(inventory, wanted, LONG)
    assert answer == expected
    assert attempts == 6  # 500, 1,000, 2,000, 4,000, 8,000, 16,000
    assert counter.steps < 3 * at_once  # its parts are tested anew in each


def test_where_all_nodes_are_worse_than_promised_the_best_so_far_counts_in_the_last_attempt(searched, monkeypatch):
    monkeypatch.setattr(decision, "most_promising", lambda candidates, _: ((1, 0.0), candidates))
    steps = decided(furnished(1), request(*of_one_rack(16)), LONG)[0].trace
    assert steps is not None
    expected = decide(furnished(30), request(*of_one_rack(16)), LONG)
    searched.clear()
    answer, attempts = decided(furnished(30), request(*of_one_rack(16)), Options(search_steps=2_000))
    assert isinstance(answer, Decision)
    assert answer.allocations == expected.allocations
    assert attempts > 1
    assert len(searched) < 16 * attempts
