"""Evaluating selectors under a budget: in slices, where somebody asks, and going on where it stopped."""

import pytest

from controller.cluster.incremental.changes import Shared
from controller.inventory.inventory import Inventory
from controller.inventory.selector_budget import Heartbeat, OverBudget, Overrun, Payer, SliceSpent
from controller.inventory.verdicts import KEPT
from hami_dra.cel import SHORT, EvaluationError, Selector
from tests.cards import DRIVER, card, node, slice_of, whole

OWN = 'device.attributes["hami.io"].uuid != "x"'
T4 = 'device.attributes["hami.io"].productName == "Tesla T4"'
TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
LOOPS = f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, {TEN}.all(e, a + b + c + d + e > 0)))))"


class Turns:
    """Allows so many evaluations in one go. Its clock shows how many there were."""

    limits = SHORT

    def __init__(self, seen, most, account="team"):
        self.account = account
        self.clock = lambda: float(len(seen))
        self._most = most
        self._spent = 0.0
        self.payers = []

    def admit(self, expression, payer):
        self.payers.append(payer)

    def charge(self, expression, payer, seconds, *, done, left):
        self._spent += seconds
        if self._spent >= self._most:
            raise SliceSpent

    def too_expensive(self, expression, payer, seconds):
        return OverBudget(Overrun(expression, payer, "too expensive"))


@pytest.fixture
def evaluations(monkeypatch):
    """Every evaluation of a selector, by its expression."""
    seen = []
    evaluate = Selector.evaluate
    monkeypatch.setattr(Selector, "evaluate", lambda self, *args: seen.append(self.expression) or evaluate(self, *args))
    return seen


@pytest.fixture
def inventory():
    made = Inventory()
    made.node_changed(None, node())
    made.slice_changed(None, slice_of("n1", [*(card(number) for number in range(20)), whole(20)]))
    return made


def test_what_was_evaluated_before_the_slice_was_spent_is_kept(inventory, evaluations):
    rounds = 0
    while True:
        rounds += 1
        assert rounds < 30, "no progress"
        with inventory.verdicts.within(Turns(evaluations, 3)):
            try:
                column = inventory.verdicts.matching(OWN)
                break
            except SliceSpent:
                continue
    assert column.all()  # the last device lacks the attribute: it may match
    assert len(evaluations) == 21
    assert rounds > 3


def test_only_rows_that_are_asked_about_are_evaluated(inventory, evaluations):
    verdicts = inventory.verdicts
    rows = verdicts.selected(inventory.rows_of(0), ('device.driver == "none"',), payer=Payer.CLASS)
    assert verdicts.selected(rows, (OWN,)).size == 0
    assert OWN not in evaluations
    some = inventory.rows_of(0)[:4]
    assert verdicts.matching(OWN, some).all()
    assert evaluations.count(OWN) == 4


def test_the_drivers_of_a_claim_are_those_that_its_class_selects_and_no_others_are_evaluated(inventory, evaluations):
    inventory.slice_changed(None, slice_of("n1", [card(0), card(1)], driver="other"))
    assert inventory.verdicts.drivers((OWN,), (f'device.driver == "{DRIVER}"',)) == {DRIVER}
    assert evaluations.count(OWN) == 21


def test_a_single_evaluation_has_a_lower_limit_than_that_of_kubernetes(inventory):
    assert inventory.verdicts.matching(LOOPS).all(), "Kubernetes evaluates it, and so do commands"
    other = Inventory()
    other.slice_changed(None, slice_of("n1", [card(0)]))
    with other.verdicts.within(Turns([], 10)), pytest.raises(OverBudget):
        other.verdicts.matching(LOOPS)


def test_the_search_reads_what_the_column_knows(inventory, evaluations):
    inventory.verdicts.matching(OWN)
    before = len(evaluations)
    devices = [inventory.devices.device(row) for row in range(inventory.devices.size)]
    assert inventory.verdicts.test(OWN, Payer.CLAIM)(devices[0])
    with pytest.raises(EvaluationError, match="no such key: uuid"):
        inventory.verdicts.test(OWN, Payer.CLAIM)(devices[20])
    assert len(evaluations) == before


def test_a_device_that_is_in_no_row_is_evaluated_by_itself(inventory, evaluations):
    device = inventory.devices.device(3)
    inventory.slice_changed(slice_of("n1", []), None)
    assert inventory.verdicts.test(T4, Payer.CLAIM)(device)
    assert evaluations == [T4]


def test_who_pays_is_said(inventory, evaluations):
    turns = Turns(evaluations, 1_000)
    with inventory.verdicts.within(turns):
        inventory.verdicts.drivers((OWN,), (T4,))
        assert set(turns.payers) == {Payer.CLASS, Payer.CLAIM}


def test_a_namespace_of_many_expressions_pushes_out_its_own(inventory, evaluations):
    verdicts = inventory.verdicts
    with verdicts.within(Turns([], 1, account="honest")):
        verdicts.matching(OWN)
    with verdicts.within(Turns([], 1, account="greedy")):
        for number in range(2 * KEPT):
            verdicts.matching(f'{T4} && "{number}" != ""')
    before = len(evaluations)
    verdicts.matching(OWN)
    assert len(evaluations) == before


def test_progress_can_be_watched_and_ended(inventory):
    beats = []
    with inventory.verdicts.within(Heartbeat(lambda: beats.append(1))):
        inventory.verdicts.matching(OWN)
    assert len(beats) > 2

    class Enough(Exception):
        pass

    def end():
        raise Enough

    with inventory.verdicts.within(Heartbeat(end)), pytest.raises(Enough):
        inventory.verdicts.matching(T4)


def test_the_largest_account_loses_its_oldest():
    kept = Shared(4)
    for key in "abc":
        kept.get(key, "many", lambda: 1)
    kept.get("x", "one", lambda: 2)
    kept.get("a", "many", lambda: 0)
    kept.get("y", "one", lambda: 3)
    made = []
    for key in "acxyb":
        kept.get(key, "other", lambda key=key: made.append(key) or 5)
    assert made == ["b"], "the least recently used of the account that has the most"
    assert len(kept.values()) == 4


def test_long_expressions_count_for_what_they_weigh():
    """One expression may have 10 KiB: 256 of them, compiled, would be 250 MB."""
    kept = Shared(10)
    for number in range(3):
        kept.get(f"honest {number}"[-1], "honest", object)
    for number in range(5):
        kept.get(f"long{number}", "hostile", object, weight=5)
    assert [kept.find(str(number)) is not None for number in range(3)] == [True] * 3
    assert [kept.find(f"long{number}") is not None for number in range(5)] == [False] * 4 + [True]
    assert len(kept.values()) == 4


def test_what_weighs_more_than_all_that_may_be_kept_is_made_and_not_kept():
    kept = Shared(10)
    made = object()
    assert kept.get("long", "hostile", lambda: made, weight=20) is made
    assert len(kept.values()) == 0
    assert kept.get("ok", "hostile", object) is kept.find("ok")
