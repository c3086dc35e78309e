"""Faults that come and go: what counts, since when, and for how long."""

import pytest

from hami_dra.api.hardware import Fault
from hami_dra.driver.node.damping import MEMORY, MOST, FlapDamper

XID = Fault(code="xid-79", message="fell off the bus")
ECC = Fault(code="ecc-double-bit", message="uncorrectable")


@pytest.fixture
def damper():
    return FlapDamper(recovery=60.0, confirm=30.0)


def codes(damper):
    return [each.fault.code for each in damper.counted("u")]


def lasting(damper):
    return [each.lasting for each in damper.counted("u")]


def test_a_fault_counts_at_once_and_is_over_when_it_stayed_away(damper):
    damper.look({"u": [XID]}, 0)
    assert codes(damper) == ["xid-79"]
    damper.look({"u": []}, 10)
    damper.look({"u": []}, 69)
    assert codes(damper) == ["xid-79"]
    damper.look({"u": []}, 70)
    assert codes(damper) == []


def test_without_a_recovery_time_the_first_good_look_ends_it():
    damper = FlapDamper(recovery=0.0, confirm=0.0)
    damper.look({"u": [XID]}, 0)
    damper.look({"u": []}, 1)
    assert codes(damper) == []


def test_a_card_that_nobody_looked_at_stays_as_it_was(damper):
    damper.look({"u": [XID]}, 0)
    damper.look({}, 1000)
    damper.look({"other": []}, 2000)
    assert codes(damper) == ["xid-79"]


def test_one_that_comes_back_stays_twice_as_long_each_time(damper):
    now, held = 0.0, []
    for _ in range(6):
        damper.look({"u": [XID]}, now)
        gone = now + 1
        now = gone
        while codes(damper):
            damper.look({"u": []}, now)
            now += 1
        held.append(now - gone - 1)
    assert held == [60, 120, 240, 480, MOST, MOST]


def test_one_that_blinks_does_not_change_what_is_published(damper):
    seen = set()
    for second in range(600):
        damper.look({"u": [XID] if second % 20 < 10 else []}, second)
        seen.add(tuple(codes(damper)))
    assert seen == {("xid-79",)}


def test_long_health_is_a_new_beginning(damper):
    damper.look({"u": [XID]}, 0)
    damper.look({"u": []}, 1)
    damper.look({"u": []}, 61)
    damper.look({"u": [XID]}, 62 + MEMORY)
    damper.look({"u": []}, 63 + MEMORY)
    damper.look({"u": []}, 123 + MEMORY)
    assert codes(damper) == []


def test_a_fault_lasts_once_every_look_of_the_confirm_time_saw_it(damper):
    for now in (0, 10, 20):
        damper.look({"u": [XID]}, now)
        assert lasting(damper) == [False]
    damper.look({"u": [XID]}, 30)
    assert lasting(damper) == [True]
    damper.look({"u": []}, 40)
    assert lasting(damper) == [True]


def test_a_slip_of_a_tool_never_lasts(damper):
    damper.look({"u": [XID]}, 0)
    damper.look({"u": []}, 40)
    assert lasting(damper) == [False]


@pytest.mark.parametrize("slips", [(0, 50), (0, 50, 150, 380), (0, 20, 40, 60, 80, 100)])
def test_slips_that_are_apart_are_slips(damper, slips):
    for now in range(0, 1000, 10):
        damper.look({"u": [XID] if now in slips else []}, now)
        assert lasting(damper) in ([False], [])


def test_time_in_which_nobody_could_look_is_no_part_of_a_fault(damper):
    damper.look({"u": [XID]}, 0)
    damper.blind()
    damper.look({"u": [XID]}, 300)
    assert lasting(damper) == [False]
    damper.look({"u": [XID]}, 330)
    assert lasting(damper) == [True]
    damper.blind()
    damper.look({"u": [XID]}, 600)
    assert lasting(damper) == [True]


def test_the_oldest_comes_first_whatever_the_tool_says_first(damper):
    damper.look({"u": [XID]}, 0)
    damper.look({"u": [ECC, XID]}, 1)
    damper.look({"u": [XID, ECC]}, 2)
    assert codes(damper) == ["xid-79", "ecc-double-bit"]
    damper.forget("u")
    assert codes(damper) == []
