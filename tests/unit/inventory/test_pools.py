"""Which devices a node sees, by the rules of the structured allocator (pools_incubating.go)."""

import pytest

from controller.inventory.inventory import Inventory
from controller.inventory.pools import PoolBook, PoolGates, compile_slice
from tests.cards import card, node, slice_of, whole

COUNTED = {"consumesCounters": [{"counterSet": "chip", "counters": {"units": {"value": "1"}}}]}
COUNTERS = [{"name": "chip", "counters": {"units": {"value": "4"}}}]


def book_of(*slices, gates=PoolGates()):
    book = PoolBook(gates)
    for each in slices:
        book.put(compile_slice(each))
    return book


def seen(book, name="n1", **labels):
    """(driver/pool, devices) of each pool that can be used."""
    pools = book.on(node(name, labels=labels))
    return [
        (f"{pool.driver}/{pool.name}", [device.id.device for device in pool.devices])
        for pool in pools
        if not pool.incomplete and not pool.invalid
    ]


def only(book, name="n1", **labels):
    (pool,) = book.on(node(name, labels=labels))
    return pool


def test_slices_are_ordered_by_name_and_devices_as_listed():
    book = book_of(
        slice_of("n1", [whole(9)], name="b", count=2), slice_of("n1", [whole(5), whole(1)], name="a", count=2)
    )
    assert seen(book) == [("nvidia.hami.io/n1", ["dev-5", "dev-1", "dev-9"])]


def test_pools_are_ordered_by_driver_and_name_those_with_binding_conditions_last():
    book = book_of(
        slice_of("n1", [whole(0)], name="1", driver="b", pool="x"),
        slice_of("n1", [whole(0)], name="2", driver="a", pool="y"),
        slice_of("n1", [whole(0)], name="3", driver="a", pool="x"),
        slice_of("n1", [whole(0, bindingConditions=["ready"])], name="4", driver="a", pool="a"),
    )
    assert [pool for pool, _ in seen(book)] == ["a/x", "a/y", "b/x", "a/a"]


def test_only_the_highest_generation_that_reaches_the_node_counts():
    book = book_of(slice_of("n1", [whole(0)], name="old"), slice_of("n1", [whole(1)], name="new", generation=2))
    assert seen(book) == [("nvidia.hami.io/n1", ["dev-1"])]


@pytest.mark.parametrize(("published", "declared"), [(1, 2), (2, 1), (3, 2)])
def test_a_pool_with_slices_missing_or_too_many_is_incomplete(published, declared):
    slices = [slice_of("n1", [whole(number)], name=f"s{number}", count=declared) for number in range(published)]
    assert only(book_of(*slices)).incomplete
    assert seen(book_of(*slices)) == []


def test_slices_of_other_nodes_complete_a_pool():
    book = book_of(
        slice_of("n1", [whole(0)], name="a", pool="p", count=2), slice_of("n2", [whole(1)], name="b", pool="p", count=2)
    )
    assert seen(book, "n1") == [("nvidia.hami.io/p", ["dev-0"])]
    assert seen(book, "n2") == [("nvidia.hami.io/p", ["dev-1"])]
    assert [device.id.device for device in only(book, "n1").elsewhere] == ["dev-1"]


def test_a_newer_generation_elsewhere_makes_an_unfinished_pool_obsolete():
    old = slice_of("n1", [whole(0)], name="a", pool="p", count=2)
    newer = slice_of("n2", [whole(1)], name="b", pool="p", generation=2)
    assert book_of(old, newer).on(node("n1")) == []


def test_a_pool_that_is_whole_on_its_node_does_not_look_elsewhere():
    """Two nodes that use one pool name, each with all the slices it declares: neither is in the other's way."""
    book = book_of(
        slice_of("n1", [whole(0)], name="a", pool="p"), slice_of("n2", [whole(0)], name="b", pool="p", generation=7)
    )
    assert seen(book, "n1") == [("nvidia.hami.io/p", ["dev-0"])]
    assert only(book, "n1").elsewhere == ()


def test_a_device_named_twice_makes_the_pool_invalid():
    book = book_of(slice_of("n1", [whole(0)], name="a", count=2), slice_of("n1", [whole(0)], name="b", count=2))
    assert "dev-0" in only(book).invalid


def test_counters_come_from_slices_of_their_own():
    book = book_of(
        slice_of("n1", [whole(0, **COUNTED)], name="a", count=2),
        slice_of("n1", [], name="b", count=2, nodeName="n1", sharedCounters=COUNTERS),
    )
    pool = only(book)
    assert not pool.invalid
    assert list(pool.counter_sets) == ["chip"]


def test_counters_of_other_nodes_slices_are_found_too():
    book = book_of(
        slice_of("n1", [whole(0, **COUNTED)], name="a", pool="p", count=2),
        slice_of("n2", [], name="b", pool="p", count=2, nodeName="n2", sharedCounters=COUNTERS),
    )
    assert not only(book).invalid


@pytest.mark.parametrize(
    ("counters", "named"),
    [([], "chip"), ([{"name": "chip", "counters": {"other": {"value": "1"}}}], "units")],
    ids=["set", "counter"],
)
def test_an_unknown_counter_makes_the_pool_invalid(counters, named):
    slices = [slice_of("n1", [whole(0, **COUNTED)], name="a", count=2 if counters else 1)]
    if counters:
        slices.append(slice_of("n1", [], name="b", count=2, nodeName="n1", sharedCounters=counters))
    assert named in only(book_of(*slices)).invalid


def test_a_counter_set_named_twice_makes_the_pool_invalid():
    slices = [slice_of("n1", [], name=name, count=2, nodeName="n1", sharedCounters=COUNTERS) for name in "ab"]
    assert "chip" in only(book_of(*slices)).invalid


def test_wide_slices_reach_nodes_by_selector_or_all():
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["7"]}]}]}
    book = book_of(
        slice_of("x", [whole(0)], name="a", pool="all", allNodes=True),
        slice_of("x", [whole(1)], name="b", pool="rack", nodeSelector=selector),
    )
    assert [pool for pool, _ in seen(book, rack="7")] == ["nvidia.hami.io/all", "nvidia.hami.io/rack"]
    assert [pool for pool, _ in seen(book, "n2", rack="8")] == ["nvidia.hami.io/all"]


def test_each_device_may_have_a_node_of_its_own():
    devices = [
        whole(0, nodeName="n1"),
        whole(1, nodeName="n2"),
        whole(2, allNodes=True),
        whole(3, nodeSelector={"nodeSelectorTerms": [{"matchFields": [field("NotIn", "n1")]}]}),
    ]
    book = book_of(slice_of("x", devices, pool="p", perDeviceNodeSelection=True))
    assert seen(book, "n1") == [("nvidia.hami.io/p", ["dev-0", "dev-2"])]
    assert seen(book, "n2") == [("nvidia.hami.io/p", ["dev-1", "dev-2", "dev-3"])]
    assert [device.id.device for device in only(book, "n1").elsewhere] == ["dev-1", "dev-3"]


def field(operator, name):
    return {"key": "metadata.name", "operator": operator, "values": [name]}


def test_a_slice_that_says_nothing_about_nodes_reaches_none():
    assert seen(book_of(slice_of("x", [whole(0)], pool="p", allNodes=False))) == []


def test_without_partitionable_devices_their_slices_are_left_out():
    per_device = slice_of("x", [whole(0, nodeName="n1")], name="a", pool="p", perDeviceNodeSelection=True)
    plain = slice_of("n1", [whole(1)], name="b", pool="q")
    off = PoolGates(partitionable_devices=False)
    assert seen(book_of(per_device, plain, gates=off)) == [("nvidia.hami.io/q", ["dev-1"])]


def test_compatibility_groups_count_only_with_their_gate():
    grouped = {"consumesCounters": [{"counterSet": "chip", "counters": {}, "compatibilityGroups": ["x"]}]}
    slices = [
        slice_of("n1", [whole(0, **grouped)], name="a", count=3),
        slice_of("n1", [whole(1)], name="b", count=3),
        slice_of("n1", [], name="c", count=3, nodeName="n1", sharedCounters=COUNTERS),
    ]
    assert only(book_of(*slices)).incomplete
    assert seen(book_of(*slices, gates=PoolGates(compatibility_groups=True))) == [
        ("nvidia.hami.io/n1", ["dev-0", "dev-1"])
    ]


def test_pools_of_a_node_follow_what_changes_elsewhere():
    book = book_of(slice_of("n1", [whole(0)], name="a", pool="p", count=2))
    assert only(book).incomplete
    book.put(compile_slice(slice_of("n2", [whole(1)], name="b", pool="p", count=2)))
    assert seen(book, "n1") == [("nvidia.hami.io/p", ["dev-0"])]
    book.drop("b")
    assert only(book).incomplete


def test_nodes_that_see_a_wide_slice_of_a_pool_follow_its_local_ones():
    book = book_of(slice_of("x", [whole(0)], name="a", pool="p", count=2, allNodes=True))
    assert only(book, "n1").incomplete
    book.put(compile_slice(slice_of("n2", [whole(1)], name="b", pool="p", count=2)))
    assert seen(book, "n1") == [("nvidia.hami.io/p", ["dev-0"])]
    book.drop("b")
    assert only(book, "n1").incomplete


def test_labels_decide_anew_which_wide_pools_reach_a_node():
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}
    inventory = Inventory()
    inventory.slice_changed(None, slice_of("x", [whole(0)], driver="net.example.com", pool="p", nodeSelector=selector))
    bare, labelled = node(), node(labels={"rack": "7"})
    inventory.node_changed(None, bare)
    assert inventory.pools_on("n1") == []
    inventory.node_changed(bare, labelled)
    assert [pool.name for pool in inventory.pools_on("n1")] == ["p"]


def test_problems_name_the_pool_and_what_is_wrong():
    inventory = Inventory()
    inventory.node_changed(None, node())
    inventory.slice_changed(None, slice_of("n1", [card(0)], count=2))
    wide = {"name": "w", "driver": "net.example.com", "pool": "wide", "allNodes": True}
    inventory.slice_changed(None, slice_of("x", [whole(0), whole(0)], **wide))
    assert inventory.problems == {
        "pool nvidia.hami.io/n1": "incomplete: spec.pool.resourceSliceCount is 2, slices of generation 1: 1",
        "pool net.example.com/wide": "duplicate device name dev-0",
    }
    assert inventory.nodes_with_unusable_pools() == {"n1"}
    inventory.slice_changed(None, slice_of("n1", [card(0)]))
    inventory.slice_changed(slice_of("x", [], **wide), None)
    assert inventory.problems == {}
    assert inventory.nodes_with_unusable_pools() == set()
