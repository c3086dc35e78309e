"""Who holds what, observed and assumed."""

from fractions import Fraction

import msgspec
import pytest

from controller.inventory.inventory import Inventory
from controller.inventory.ledger import Ledger, holdings_of
from controller.inventory.model import DeviceId
from hami_dra.api.resource import AllocationResult
from tests.cards import DRIVER, card, claim, node, slice_of
from tests.support.assumed import assume

CARD = DeviceId(DRIVER, "n1", "gpu-0")
OTHER = DeviceId(DRIVER, "n1", "gpu-1")


def result(device="gpu-0", *, share="", admin=False, **consumed):
    made = {"request": "r", "driver": DRIVER, "pool": "n1", "device": device}
    if share:
        made["shareID"] = share
    if consumed:
        made["consumedCapacity"] = consumed
    if admin:
        made["adminAccess"] = True
    return made


def allocation(*results):
    return msgspec.convert({"devices": {"results": list(results)}}, AllocationResult)


def test_shares_add_up_and_go_away():
    ledger = Ledger()
    ledger.observe("a", allocation(result(share="1", memory="1Gi", cores="30")))
    ledger.observe("b", allocation(result(share="2", memory="512Mi"), result(share="3", memory="512Mi")))
    assert (ledger.shares(CARD), ledger.in_use(CARD)) == (3, False)
    assert ledger.consumed(CARD) == {"memory": 2 << 30, "cores": 30}
    assert ledger.holders(CARD) == ["a", "b"]
    ledger.observe("b", None)
    assert ledger.consumed(CARD) == {"memory": 1 << 30, "cores": 30}
    ledger.observe("a", None)
    assert (ledger.shares(CARD), dict(ledger.consumed(CARD)), ledger.use_of(CARD)) == (0, {}, None)


def test_fractions_add_up_exactly():
    ledger = Ledger()
    ledger.observe("a", allocation(result(share="1", cores="400m"), result(share="2", cores="200m")))
    assert ledger.consumed(CARD) == {"cores": Fraction(3, 5)}
    ledger.observe("b", allocation(result(share="3", cores="2400m")))
    assert ledger.consumed(CARD) == {"cores": 3}


def test_a_device_held_twice_stays_in_use_until_both_let_go():
    ledger = Ledger()
    ledger.observe("a", allocation(result()))
    ledger.observe("b", allocation(result()))
    ledger.observe("a", None)
    assert ledger.in_use(CARD)
    ledger.observe("b", None)
    assert not ledger.in_use(CARD)


def test_a_share_beside_a_whole_device_leaves_no_trace():
    ledger = Ledger()
    ledger.observe("a", allocation(result()))
    ledger.observe("b", allocation(result(share="1", memory="1Gi")))
    ledger.observe("b", None)
    assert ledger.in_use(CARD)
    assert dict(ledger.consumed(CARD)) == {}


def test_admin_access_uses_nothing():
    ledger = Ledger()
    assert ledger.observe("a", allocation(result(admin=True))) == set()
    assert not ledger.in_use(CARD)


def test_the_same_news_changes_nothing():
    ledger = Ledger()
    assert ledger.observe("a", allocation(result(share="1", memory="1Gi"))) == {CARD}
    assert ledger.observe("a", allocation(result(share="1", memory="1Gi"))) == set()
    assert ledger.shares(CARD) == 1


def test_an_assumption_counts_instead_of_what_is_observed():
    ledger = Ledger()
    ledger.observe("a", allocation(result("gpu-1")))
    assert ledger.assume({"a": holdings_of(allocation(result("gpu-0")))}) == {CARD, OTHER}
    assert (ledger.in_use(CARD), ledger.in_use(OTHER)) == (True, False)
    ledger.observe("a", None)  # an older object
    assert ledger.in_use(CARD)
    ledger.observe("a", allocation(result("gpu-0")))  # the write is seen
    assert ledger.forget("a") == set()
    assert ledger.in_use(CARD)


def test_an_assumption_that_did_not_come_true_is_taken_back():
    ledger = Ledger()
    ledger.assume({"a": holdings_of(allocation(result()))})
    assert ledger.forget("a") == {CARD}
    assert ledger.forget("a") == set()
    assert not ledger.in_use(CARD)


def test_assumed_results_of_a_shared_card_are_shares_without_shareid_or_capacity():
    """`decide` stamps no shareIDs, and a card may be shared that publishes no capacity."""
    inventory = furnished(card(0, capacity={}))
    assume(inventory, "a", {"devices": {"results": [result() | {"consumedCapacity": {}}]}})
    assert (inventory.usage.shares(CARD), inventory.usage.in_use(CARD)) == (1, False)
    assume(inventory, "a", {"devices": {"results": [result()]}})
    assert (inventory.usage.shares(CARD), inventory.usage.in_use(CARD)) == (0, True)


def test_usage_outlives_the_slice_and_its_generation():
    inventory = furnished(card(0))
    inventory.claim_changed(None, claim(allocation={"devices": {"results": [result(share="1", memory="4Gi")]}}))
    row = inventory.devices.row_of(CARD)
    assert inventory.devices.memory_used[row] == 4 << 30
    published = slice_of("n1", [card(0)])
    newer = slice_of("n1", [card(0)], generation=2)
    inventory.slice_changed(published, newer)
    assert inventory.devices.memory_used[inventory.devices.row_of(CARD)] == 4 << 30
    inventory.slice_changed(newer, None)
    assert inventory.devices.row_of(CARD) == -1
    assert inventory.usage.consumed(CARD)["memory"] == 4 << 30
    inventory.slice_changed(None, newer)
    assert inventory.devices.memory_used[inventory.devices.row_of(CARD)] == 4 << 30


def test_a_claim_made_anew_under_the_name_does_not_hold_what_the_first_held():
    inventory = furnished(card(0))
    first = claim(uid="1", allocation={"devices": {"results": [result()]}})
    second = claim(uid="2")
    inventory.claim_changed(None, first)
    inventory.claim_changed(None, second)  # the deletion was missed
    assert not inventory.usage.in_use(CARD)
    inventory.claim_changed(second, claim(uid="2", allocation={"devices": {"results": [result()]}}))
    inventory.claim_changed(first, None)  # heard late
    assert inventory.usage.in_use(CARD)


@pytest.mark.parametrize("amount", ["no quantity", "1e40", "-5"])
def test_odd_amounts_in_an_allocation_do_no_harm(amount):
    inventory = furnished(card(0))
    inventory.claim_changed(None, claim(allocation={"devices": {"results": [result(share="1", memory=amount)]}}))
    inventory.claim_changed(claim(), claim(allocation=None))
    row = inventory.devices.row_of(CARD)
    assert (inventory.devices.memory_used[row], float(inventory.nodes.score[0])) == (0, 0.0)


def furnished(*devices):
    inventory = Inventory()
    inventory.node_changed(None, node())
    inventory.slice_changed(None, slice_of("n1", devices))
    return inventory
