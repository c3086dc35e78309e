"""Gangs under a limit of steps for each attempt: the answer is the same in any number of attempts, and there is an end."""

import pytest
from msgspec.structs import replace

from controller.allocation import FIRST_ATTEMPT, Attempt, AttemptSpent
from controller.gangs import UnitDecision, UnitRefusal, decide_gang
from controller.gangs.gang_search import STEPS
from controller.gangs.member_placements import STEPS_PER_DECISION
from controller.reconcile.scheduling_cycle.cycle import _STEPS_OF_RETRIES
from tests.cards import claim as cards_claim
from tests.cards import node, slice_of
from tests.cards import request as cards_request
from tests.support.allocation import DRIVER, claim, exactly
from tests.support.gang_requests import OPTIONS as SHARED
from tests.support.gang_requests import RACK, cluster, gang, held, within
from tests.support.gang_requests import member as shared_member
from tests.unit.decide.test_attempts import OPTIONS, request
from tests.unit.decide.test_hostile import furnished

IN_ONE_RACK = [{"matchAttribute": f"{DRIVER}/rack"}]


def member(name, count):
    wanted = claim(exactly(count=count), name=name, constraints=IN_ONE_RACK)
    wanted["metadata"]["uid"] = name
    return request(wanted, pod=name)


def decided(inventory, wanted, most=16_000):
    """The answer, and how many attempts it took. `most`: steps of the longest."""
    steps = 20
    for attempts in range(1, 100):
        before, attempt = held(inventory), Attempt(min(steps, most), is_last=steps >= most)
        try:
            return decide_gang(inventory, wanted, replace(OPTIONS, attempt=attempt)), attempts
        except AttemptSpent:
            steps *= 2
        finally:
            assert held(inventory) == before
    raise AssertionError("no progress")


def test_a_gang_is_placed_in_many_attempts_as_in_one():
    inventory = furnished(4)
    wanted = gang(member("p0", 6), member("p1", 17), member("p2", 6), least=2)
    answer, attempts = decided(inventory, wanted)
    assert attempts > 1
    assert isinstance(answer, UnitDecision)
    alone = decide_gang(inventory, wanted, OPTIONS)
    assert [decision for _, decision in answer.placed] == [decision for _, decision in alone.placed]
    assert [each.pod.metadata.name for each, _ in answer.left] == ["p1"]


def test_a_gang_with_a_member_that_no_node_fits_is_refused_after_some_attempts():
    inventory = furnished(4)
    answer, attempts = decided(inventory, gang(member("p0", 6), member("p1", 6), member("p2", 17)))
    assert attempts > 1
    assert isinstance(answer, UnitRefusal)
    assert answer.member == "ns/p2"
    assert not inventory.usage.uses()


def test_a_gang_that_the_longest_attempt_cannot_place_is_given_up():
    answer, _ = decided(furnished(4), gang(member("p0", 6), member("p1", 6), member("p2", 17)), most=40)
    assert isinstance(answer, UnitRefusal)
    assert "given up after" in answer.message


def test_decisions_beyond_one_for_each_member_are_charged_to_the_attempt():
    small = Attempt(25 * STEPS_PER_DECISION, is_last=False)
    inventory = cluster(4, 1, labels=lambda number: {RACK: f"r{number // 2}"}, shares="10")
    alike = gang(*[member_of_kind(f"p{number}", 1) for number in range(40)])
    assert isinstance(decide_gang(inventory, alike, replace(SHARED, attempt=small)), UnitDecision)
    assert small.spent == 0
    unlike = gang(*[member_of_kind(f"p{number}", number % 8) for number in range(40)], topology=(within(RACK),))
    with pytest.raises(AttemptSpent):
        decide_gang(inventory, unlike, replace(SHARED, attempt=small))
    assert isinstance(decide_gang(inventory, unlike, SHARED), UnitRefusal)


def member_of_kind(name, kind):
    return shared_member(name, memory=f"{1 + kind}Mi", cores="0")


DECOYS, COUNT = 60, 6


def part(name, index, amount):
    drawn = [{"counterSet": f"card-{index}", "counters": {"parts": {"value": str(amount)}}}]
    return {"name": name, "consumesCounters": drawn}


def divided():
    inventory = cluster(0)
    for rack in range(DECOYS + 1):
        for each in range(2 if rack < DECOYS else 3):
            name = f"r{rack:02}-{each}"
            inventory.node_changed(None, node(name, labels={RACK: f"rack-{rack:02}"}))
            devices = [part("whole", 0, 2), part("half-0", 0, 1), part("half-1", 0, 1)]
            sets = [{"name": "card-0", "counters": {"parts": {"value": "2"}}}]
            inventory.slice_changed(None, slice_of(name, devices, count=2))
            inventory.slice_changed(
                None, slice_of(name, [], name=f"{name}-s", count=2, nodeName=name, sharedCounters=sets)
            )
    return inventory


def test_a_gang_has_as_many_decisions_in_the_end_as_the_docs_name():
    """Many racks have room by the count alone: divided cards are counted as if their parts were apart."""
    assert _STEPS_OF_RETRIES == STEPS * STEPS_PER_DECISION
    members = [
        shared_member(f"p{number}", claims=[cards_claim(f"p{number}-c", [cards_request()])]) for number in range(COUNT)
    ]
    wanted, inventory = gang(*members, topology=(within(RACK),)), divided()
    free = decide_gang(inventory, wanted, SHARED)
    assert isinstance(free, UnitDecision)
    steps, most = FIRST_ATTEMPT, 20_000 + _STEPS_OF_RETRIES
    while True:
        attempt = Attempt(min(steps, most), is_last=steps >= most)
        try:
            found = decide_gang(inventory, wanted, replace(SHARED, attempt=attempt))
            break
        except AttemptSpent:
            steps *= 2
    assert isinstance(found, UnitDecision)
    assert found.steps == free.steps
