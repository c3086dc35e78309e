"""The trial: what the search holds, on top of the ledger."""

from controller.allocation.tentative import TentativeUsage
from controller.inventory.pools import compile_slice
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


def consumption(view, device_):
    found = view.consumption(device_)
    assert found is not None
    return found


def test_it_shows_the_ledger_until_something_is_taken():
    tentative = TentativeUsage(InUse(exclusive={"w"}, shared={"s": 2}, amounts={"s": {"memory": 3}}))
    assert tentative.in_use(WHOLE.id)
    assert tentative.held(WHOLE.id)
    assert (tentative.shares(SHARED.id), tentative.consumed(SHARED.id)) == (2, {"memory": 3})
    assert tentative.shared_already(SHARED.id)
    assert tentative.added == {}


def test_a_share_adds_to_the_ledger_and_is_taken_back():
    tentative = TentativeUsage(InUse(shared={"s": 1}, amounts={"s": {"memory": 3}}))
    tentative.take(ASK, SHARED, consumption(ASK, SHARED))
    tentative.take(ASK, SHARED, consumption(ASK, SHARED))
    assert tentative.shares(SHARED.id) == 3
    assert tentative.consumed(SHARED.id) == {"memory": 3 + 2 + 2}  # in whole units, each share rounded up
    assert not tentative.in_use(SHARED.id)
    assert tentative.added[SHARED.id].shares == 2
    tentative.release(ASK, SHARED, consumption(ASK, SHARED))
    tentative.release(ASK, SHARED, consumption(ASK, SHARED))
    assert tentative.consumed(SHARED.id) == {"memory": 3}
    assert tentative.added == {}
    assert tentative.state(SHARED.id) is None


def test_room_is_counted_exactly():
    tentative = TentativeUsage(InUse(amounts={"s": {"memory": 7}}))
    assert tentative.has_room(SHARED.id, consumption(ASK, SHARED))
    tentative.take(ASK, SHARED, consumption(ASK, SHARED))
    assert tentative.has_room(SHARED.id, consumption(ASK, SHARED))
    tentative.take(ASK, SHARED, consumption(ASK, SHARED))  # 7 + 1.5 + 1.5 = 10
    assert not tentative.has_room(SHARED.id, consumption(ASK, SHARED))


def test_a_whole_device_is_in_use_and_takes_its_totals():
    tentative = TentativeUsage(InUse())
    tentative.take(ASK, WHOLE, consumption(ASK, WHOLE))
    assert tentative.in_use(WHOLE.id)
    assert tentative.held_by(WHOLE.id, 0)
    assert not tentative.held_by(WHOLE.id, 1)
    assert tentative.added[WHOLE.id].exclusive == 1
    assert tentative.added[WHOLE.id].consumed == {"memory": 8}
    assert tentative.consumed(WHOLE.id) == {}


def test_admin_access_holds_against_others_and_adds_nothing():
    tentative = TentativeUsage(InUse())
    tentative.take(WATCH, WHOLE, consumption(WATCH, WHOLE))
    assert tentative.held(WHOLE.id)
    assert not tentative.in_use(WHOLE.id)
    tentative.take(WATCH, SHARED, consumption(WATCH, SHARED))
    assert tentative.shared_already(SHARED.id)
    assert tentative.shares(SHARED.id) == 0
    assert tentative.added == {}
    tentative.release(WATCH, SHARED, consumption(WATCH, SHARED))
    assert not tentative.shared_already(SHARED.id)
