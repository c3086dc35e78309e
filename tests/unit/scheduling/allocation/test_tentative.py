"""The trial: what the search holds, on top of the ledger."""

from controller.scheduling.allocation.tentative import TentativeUsage
from controller.scheduling.inventory.pools import compile_slice
from hami_dra.api.resource import ResourceSlice
from tests.support.allocation import InUse, claim, device, exactly, parse, problem_of, slice_of

SHARED, WHOLE = compile_slice(
    parse(
        slice_of(device("s", shared=True, capacity={"memory": "10"}), device("w", capacity={"memory": "8"})),
        ResourceSlice,
    )
).devices
ASK, WATCH = problem_of(
    claim(exactly("a", capacity={"memory": "1500m"}), exactly("w", adminAccess=True, capacity={"memory": "2"}))
).views


def need(view, device_):
    found = view.need(device_)
    assert found is not None
    return found


def test_it_shows_the_ledger_until_something_is_taken():
    trial = TentativeUsage(InUse(exclusive={"w"}, shared={"s": 2}, amounts={"s": {"memory": 3}}))
    assert trial.in_use(WHOLE.id)
    assert trial.held(WHOLE.id)
    assert (trial.shares(SHARED.id), trial.consumed(SHARED.id)) == (2, {"memory": 3})
    assert trial.shared_already(SHARED.id)
    assert trial.added == {}


def test_a_share_adds_to_the_ledger_and_is_taken_back():
    trial = TentativeUsage(InUse(shared={"s": 1}, amounts={"s": {"memory": 3}}))
    trial.take(ASK, SHARED, need(ASK, SHARED))
    trial.take(ASK, SHARED, need(ASK, SHARED))
    assert trial.shares(SHARED.id) == 3
    assert trial.consumed(SHARED.id) == {"memory": 3 + 2 + 2}  # in whole units, each share rounded up
    assert not trial.in_use(SHARED.id)
    assert trial.added[SHARED.id].shares == 2
    trial.release(ASK, SHARED, need(ASK, SHARED))
    trial.release(ASK, SHARED, need(ASK, SHARED))
    assert trial.consumed(SHARED.id) == {"memory": 3}
    assert trial.added == {}
    assert trial.state(SHARED.id) is None


def test_room_is_counted_exactly():
    trial = TentativeUsage(InUse(amounts={"s": {"memory": 7}}))
    assert trial.has_room(SHARED.id, need(ASK, SHARED))
    trial.take(ASK, SHARED, need(ASK, SHARED))
    assert trial.has_room(SHARED.id, need(ASK, SHARED))
    trial.take(ASK, SHARED, need(ASK, SHARED))  # 7 + 1.5 + 1.5 = 10
    assert not trial.has_room(SHARED.id, need(ASK, SHARED))


def test_a_whole_device_is_in_use_and_takes_its_totals():
    trial = TentativeUsage(InUse())
    trial.take(ASK, WHOLE, need(ASK, WHOLE))
    assert trial.in_use(WHOLE.id)
    assert trial.held_by(WHOLE.id, 0)
    assert not trial.held_by(WHOLE.id, 1)
    assert trial.added[WHOLE.id].exclusive == 1
    assert trial.added[WHOLE.id].consumed == {"memory": 8}
    assert trial.consumed(WHOLE.id) == {}


def test_admin_access_holds_against_others_and_adds_nothing():
    trial = TentativeUsage(InUse())
    trial.take(WATCH, WHOLE, need(WATCH, WHOLE))
    assert trial.held(WHOLE.id)
    assert not trial.in_use(WHOLE.id)
    trial.take(WATCH, SHARED, need(WATCH, SHARED))
    assert trial.shared_already(SHARED.id)
    assert trial.shares(SHARED.id) == 0
    assert trial.added == {}
    trial.release(WATCH, SHARED, need(WATCH, SHARED))
    assert not trial.shared_already(SHARED.id)
