"""A decision that takes several turns: nodes are searched once, and once more when they changed; a long search is interrupted."""

import msgspec
import pytest

from controller.scheduling.allocation import search
from controller.scheduling.decide import (
    Decision,
    Options,
    PodClaim,
    SchedulingRequest,
    Unfinished,
    Unschedulable,
    decide,
    decide_slice,
    decision,
    node_search,
)
from controller.scheduling.inventory.selector_budget import Heartbeat, SliceSpent
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim, ResourceSlice
from tests.support.allocation import DRIVER, claim, device, exactly, parse, slice_of
from tests.unit.scheduling.decide.test_hostile import furnished, of_one_rack

NODES = 12
OPTIONS = Options()
IMPOSSIBLE = claim(exactly(count=17), constraints=[{"matchAttribute": f"{DRIVER}/rack"}])
EMPTIED = ["node-0"] * 3
"""Searches of a node without usage, which tell what can never be met: as asked, without the constraint, with one device less. The
nodes are alike, so that one stands for all.
"""


class OneAtATime(Heartbeat):
    """Each portion of a search, and each search that ends in vain, ends the turn."""

    def __init__(self):
        super().__init__(lambda: None)

    def spend(self, seconds, _owner=""):
        raise SliceSpent


class Steps(Heartbeat):
    """A clock that counts the steps of all searches; a turn is over after `slice_` of them."""

    def __init__(self, counter, slice_):
        super().__init__(lambda: None)
        self._counter, self._left = counter, slice_

    def clock(self):
        return self._counter.steps

    def spend(self, seconds, _owner=""):
        self._left -= seconds
        if self._left <= 0:
            raise SliceSpent


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


def decided(inventory, wanted, options=OPTIONS, budget=OneAtATime, between=lambda: None):
    """The answer, and how many turns it took. `between`: called after each turn."""
    for turns in range(1, 3_000):
        with inventory.verdicts.within(budget()):
            answer = decide_slice(inventory, wanted, options)
        between()
        if not isinstance(answer, Unfinished):
            return answer, turns
    raise AssertionError("no progress")


def test_each_node_is_searched_once_however_many_turns_it_takes(searched):
    inventory = furnished(NODES)
    answer, turns = decided(inventory, request(IMPOSSIBLE))
    assert turns > NODES
    assert sorted(searched) == sorted([*(f"node-{number}" for number in range(NODES)), *EMPTIED])
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
    inventory.assume("somebody", {"devices": {"results": [result]}})
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
    assert len(searched) == 4, "four searches that are given up end the decision"
    assert "given up after" in first.message
    searched.clear()
    again, turns = decided(inventory, request(*of_one_rack(17)), options)
    assert (turns, searched) == (1, [])
    assert again.message == first.message


# --- one long search ---------------------------------------------------------------------------------------------------------

SLICE = 2_000
"""Steps of a turn, some 10 ms."""
LONG = Options(search_steps=20_000)


@pytest.mark.parametrize(
    "claims", [of_one_rack(17), of_one_rack(16), [IMPOSSIBLE]], ids=["given up", "found", "hopeless"]
)
def test_no_turn_is_longer_than_its_slice_and_a_portion(monkeypatch, searched, claims):
    expected = decide(furnished(3), request(*claims), LONG)
    searched.clear()
    counter, inventory = Counter(monkeypatch), furnished(3)
    answer, _ = decided(
        inventory, request(*claims), LONG, budget=lambda: Steps(counter, SLICE), between=counter.turn_is_over
    )
    assert answer == expected
    emptied = len(EMPTIED) if claims == [IMPOSSIBLE] else 0
    assert len(searched) == len({*searched}) + emptied, "no search began anew"
    # a step orders up to 128 devices, or takes the devices of one more claim
    assert counter.longest <= SLICE + search.PORTION + 64


def test_a_long_search_takes_many_turns_and_its_steps_are_those_of_one(monkeypatch):
    inventory, wanted = furnished(1), request(*of_one_rack(17))
    counter = Counter(monkeypatch)
    expected = decide(furnished(1), wanted, LONG)
    at_once, counter.steps = counter.steps, 0
    answer, turns = decided(inventory, wanted, LONG, budget=lambda: Steps(counter, SLICE))
    assert (answer, counter.steps) == (expected, at_once)
    assert at_once > 20_000
    assert turns > 8


def test_a_search_begins_anew_when_its_node_changes_and_not_when_another_does(searched):
    inventory, wanted = furnished(2), request(*of_one_rack(17), preferred_node="node-0")
    wanted = msgspec.structs.replace(wanted, required_node="node-0")

    def turn():
        with inventory.verdicts.within(OneAtATime()):
            return decide_slice(inventory, wanted, LONG)

    assert isinstance(turn(), Unfinished)
    inventory.assume("somebody", taken("node-1"))
    assert isinstance(turn(), Unfinished)
    assert searched == ["node-0"]
    inventory.assume("another", taken("node-0"))
    assert isinstance(turn(), Unfinished)
    assert searched == ["node-0", "node-0"]


def test_decisions_that_take_turns_with_each_other_do_not_disturb_each_other(searched):
    inventory = furnished(1)
    both = [request(*of_one_rack(count), pod=f"pod-{count}") for count in (16, 17)]
    expected = [decide(furnished(1), wanted, LONG) for wanted in both]
    searched.clear()
    answers = [None, None]
    while not all(answers):
        for number, wanted in enumerate(both):
            if answers[number] is None:
                with inventory.verdicts.within(OneAtATime()):
                    answer = decide_slice(inventory, wanted, LONG)
                answers[number] = None if isinstance(answer, Unfinished) else answer
    assert answers == expected
    assert searched == ["node-0", "node-0"]


def test_a_node_that_is_worse_than_promised_is_not_searched_again_in_the_next_turn(searched, monkeypatch):
    """All of them are, and the best of them is taken once all were searched."""
    monkeypatch.setattr(decision, "most_promising", lambda candidates, _: ((1, 0.0), candidates))
    monkeypatch.setattr(node_search, "PORTION", 8)
    wanted = request(*of_one_rack(16))
    expected = decide(furnished(3), wanted, LONG)
    searched.clear()
    answer, turns = decided(furnished(3), wanted, LONG)
    assert isinstance(answer, Decision)
    assert answer == expected
    assert turns > 3
    assert sorted(searched) == ["node-0", "node-1", "node-2"]


def taken(node):
    return {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": node, "device": "gpu-0"}]}}
