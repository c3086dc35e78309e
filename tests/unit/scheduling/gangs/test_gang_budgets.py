"""Gangs under a selector budget: the answer is the same in any number of turns, and there is an end."""

from controller.scheduling.decide import Unfinished
from controller.scheduling.gangs import GangDecision, GangSearch, GangUnschedulable, decide_gang
from tests.support.allocation import DRIVER, claim, exactly
from tests.support.gang_requests import gang
from tests.unit.scheduling.decide.test_hostile import furnished
from tests.unit.scheduling.decide.test_turns import OPTIONS, OneAtATime, request

IN_ONE_RACK = [{"matchAttribute": f"{DRIVER}/rack"}]


def member(name, count):
    wanted = claim(exactly(count=count), name=name, constraints=IN_ONE_RACK)
    wanted["metadata"]["uid"] = name
    return request(wanted, pod=name)


def decided(inventory, wanted):
    """The answer, and how many turns it took."""
    search = GangSearch(inventory, wanted, OPTIONS)
    for turns in range(1, 1_000):
        with inventory.verdicts.within(OneAtATime()):
            answer = search.advance()
        if not isinstance(answer, Unfinished):
            return answer, turns
    raise AssertionError("no progress")


def test_a_gang_is_placed_in_many_turns_as_in_one():
    inventory = furnished(4)
    wanted = gang(member("p0", 6), member("p1", 17), member("p2", 6), least=2)
    answer, turns = decided(inventory, wanted)
    assert turns > 1
    assert isinstance(answer, GangDecision)
    alone = decide_gang(inventory, wanted, OPTIONS)
    assert [decision for _, decision in answer.placed] == [decision for _, decision in alone.placed]
    assert [each.pod.metadata.name for each, _ in answer.left] == ["p1"]


def test_a_gang_with_a_member_that_no_node_fits_is_refused_after_some_turns():
    inventory = furnished(4)
    answer, turns = decided(inventory, gang(member("p0", 6), member("p1", 6), member("p2", 17)))
    assert turns > 1
    assert isinstance(answer, GangUnschedulable)
    assert answer.member == "ns/p2"
    assert not inventory.usage.uses()
