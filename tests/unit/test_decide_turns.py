"""A decision that takes several turns: nodes are searched once, and once more when they changed."""

import pytest

from controller.allocation import search
from controller.decide import Decision, Demand, Options, PodClaim, Refusal, Unfinished, decide, decide_slice
from controller.inventory.selectorbudget import Heartbeat, SliceSpent
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim, ResourceSlice
from tests.support.allocation import DRIVER, claim, device, exactly, parse, slice_of
from tests.unit.test_decide_hostile import furnished, of_one_rack

NODES = 12
OPTIONS = Options()
IMPOSSIBLE = claim(exactly(count=17), constraints=[{"matchAttribute": f"{DRIVER}/rack"}])


class OneAtATime(Heartbeat):
    """Each search that ends in vain ends the turn."""

    def __init__(self):
        super().__init__(lambda: None)

    def spend(self, seconds):
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


def demand(*claims):
    pod = parse({"metadata": {"name": "pod", "namespace": "ns", "uid": "pod"}}, Pod)
    parsed = [parse(each, ResourceClaim) for each in claims]
    return Demand(pod, tuple(PodClaim(each.metadata.name, each) for each in parsed))


def decided(inventory, wanted, options=OPTIONS):
    """The answer, and how many turns it took."""
    for turns in range(1, 100):
        with inventory.verdicts.within(OneAtATime()):
            answer = decide_slice(inventory, wanted, options)
        if not isinstance(answer, Unfinished):
            return answer, turns
    raise AssertionError("no progress")


def test_each_node_is_searched_once_however_many_turns_it_takes(searched):
    inventory = furnished(NODES)
    answer, turns = decided(inventory, demand(IMPOSSIBLE))
    assert turns == NODES + 1
    assert sorted(searched) == sorted(f"node-{number}" for number in range(NODES))
    assert answer == decide(inventory, demand(IMPOSSIBLE), Options())


def test_an_equal_claim_is_refused_without_a_search_and_a_changed_node_is_searched_again(searched):
    inventory = furnished(NODES)
    decided(inventory, demand(IMPOSSIBLE))
    searched.clear()
    renamed = {**IMPOSSIBLE, "metadata": {**IMPOSSIBLE["metadata"], "name": "other", "uid": "other"}}
    answer, _ = decided(inventory, demand(renamed))
    assert isinstance(answer, Refusal)
    assert searched == []
    result = {"request": "r", "driver": DRIVER, "pool": "node-3", "device": "gpu-0"}
    inventory.assume("somebody", {"devices": {"results": [result]}})
    assert isinstance(decided(inventory, demand(IMPOSSIBLE))[0], Refusal)
    assert searched == ["node-3"]
    searched.clear()
    fewer = claim(exactly(count=16), constraints=[{"matchAttribute": f"{DRIVER}/rack"}])
    assert isinstance(decided(inventory, demand(fewer))[0], Decision)


def test_a_node_that_can_meet_the_claim_now_is_found(searched):
    inventory = furnished(2)
    decided(inventory, demand(IMPOSSIBLE))
    larger = [device(f"gpu-{index}", rack=0, serial=index) for index in range(20)]
    changed = parse(slice_of(*larger, name="slice-node-1", pool="node-1", nodeName="node-1"), ResourceSlice)
    inventory.slice_changed(changed, changed)
    answer, _ = decided(inventory, demand(IMPOSSIBLE))
    assert isinstance(answer, Decision)
    assert answer.node == "node-1"


def test_searches_that_are_given_up_are_remembered_too(searched):
    inventory = furnished(6)
    options = Options(search_steps=500)
    first, turns = decided(inventory, demand(*of_one_rack(17)), options)
    assert turns == 5, "four searches that are given up end the decision"
    assert "given up after" in first.message
    searched.clear()
    again, turns = decided(inventory, demand(*of_one_rack(17)), options)
    assert (turns, searched) == (1, [])
    assert again.message == first.message
