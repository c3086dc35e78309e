"""What the inventory makes of news: rows, taint rules, news that come twice or late."""

import msgspec
import numpy as np
import pytest

from controller.cluster.incremental.changes import KEPT, ChangeLog, LruCache
from controller.inventory.columns import NOWHERE, UNSEEN
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from hami_dra.api.core import Namespace
from hami_dra.api.resource import DeviceTaintRule
from tests.cards import DRIVER, card, node, slice_of, whole

WIDE = "net.example.com"
"""A driver whose pools span nodes; hami-dra's own have one pool a node."""
BROKEN = {"key": "broken", "effect": "NoSchedule"}


def furnished(*names):
    inventory = Inventory()
    for name in names:
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, [card(0), card(1)]))
    return inventory


def rule(selector=None, *, name="r", **taint):
    spec = {"taint": {**BROKEN, **taint}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceTaintRule)


def row(inventory, name, pool="n1", driver=DRIVER):
    return inventory.devices.row_of(DeviceId(driver, pool, name))


def tainted(inventory):
    columns = inventory.devices
    return {
        f"{columns.device(each).id.pool}/{columns.device(each).id.device}": [
            taint.key for taint in columns.device(each).taints
        ]
        for each in np.flatnonzero(columns.taint_kind[: columns.size])
    }


# --- rows ----------------------------------------------------------------------------------------------------------


def test_columns_grow_and_ranks_are_by_name():
    inventory = furnished(*(f"n{number:03}" for number in reversed(range(150))))
    assert inventory.nodes.count == inventory.nodes.size == 150
    assert int(inventory.devices.active.sum()) == 300
    by_rank = [inventory.nodes.names[each] for each in np.argsort(inventory.nodes.rank)]
    assert by_rank == sorted(by_rank)
    per_node = np.bincount(inventory.devices.node[inventory.devices.active], minlength=150)
    assert per_node.tolist() == [2] * 150


def test_rows_stay_and_freed_rows_are_used_again():
    inventory = furnished("n1", "n2")
    stays = row(inventory, "gpu-1", "n2")
    inventory.slice_changed(slice_of("n1", []), None)
    inventory.node_changed(node("n1"), None)
    assert row(inventory, "gpu-1", "n2") == stays
    inventory.node_changed(None, node("n3"))
    inventory.slice_changed(None, slice_of("n3", [whole(0), whole(1)]))
    assert (inventory.devices.size, inventory.nodes.size) == (4, 2)
    fresh = row(inventory, "dev-0", "n3")
    assert inventory.devices.node[fresh] == inventory.nodes.index_of("n3")
    assert inventory.devices.slots_total[fresh] == 1
    with pytest.raises(IndexError):
        furnished().devices.device(0)


def test_a_device_that_is_not_of_one_node_belongs_to_none():
    inventory = furnished("n1")
    inventory.slice_changed(None, slice_of("x", [whole(7)], name="wide", driver=WIDE, pool="wide", allNodes=True))
    assert inventory.devices.node[row(inventory, "dev-7", "wide", WIDE)] == NOWHERE
    assert [pool.name for pool in inventory.pools_on("n1")] == ["wide", "n1"]
    assert inventory.pools_on("nobody") == []


def test_the_newest_of_a_device_that_several_nodes_see():
    """Its slices in two generations: the one that comes last by name is not the newest."""
    inventory = Inventory()
    for name, generation, memory in (("b", 1, "8Gi"), ("a", 2, "16Gi")):
        spec = {"driver": WIDE, "pool": "p", "generation": generation, "allNodes": True}
        made = slice_of("x", [card(0, memory=memory)], name=name, **spec)
        inventory.slice_changed(None, made)
    assert inventory.devices.memory_total[row(inventory, "gpu-0", "p", WIDE)] == 16 << 30


def test_nodes_that_use_one_pool_name_find_their_devices_in_the_columns():
    """Each has all the slices that it declares, so upstream uses both, and takes their devices for the same."""
    inventory = Inventory()
    for name in ("n1", "n2"):
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, [card(0)], driver=WIDE, pool="p"))
    found = [pool.devices[0] for name in ("n1", "n2") for pool in inventory.pools_on(name)]
    assert [device.row for device in found] == [row(inventory, "gpu-0", "p", WIDE)] * 2
    inventory.slice_changed(slice_of("n2", [], driver=WIDE), None)
    assert inventory.devices.node[row(inventory, "gpu-0", "p", WIDE)] == inventory.nodes.index_of("n1")


def test_devices_wait_for_their_node():
    inventory = Inventory()
    inventory.slice_changed(None, slice_of("n1", [card(0)]))
    assert inventory.devices.node[row(inventory, "gpu-0")] == UNSEEN
    inventory.node_changed(None, node())
    assert inventory.devices.node[row(inventory, "gpu-0")] == 0
    inventory.node_changed(node(), None)
    assert inventory.devices.node[row(inventory, "gpu-0")] == UNSEEN


def test_a_slice_that_moves_to_another_pool_leaves_nothing_behind():
    inventory = furnished("n1", "n2")
    inventory.slice_changed(
        slice_of("n1", []), slice_of("n2", [card(7)], name=f"n1-{DRIVER}", driver=WIDE, pool="other")
    )
    assert row(inventory, "gpu-0") == -1
    assert inventory.devices.node[row(inventory, "gpu-7", "other", WIDE)] == inventory.nodes.index_of("n2")


def test_a_slice_that_is_published_again_touches_only_what_is_in_it():
    inventory = Inventory()
    inventory.slice_changed(None, slice_of("n1", [card(0)], name="a", count=2))
    inventory.slice_changed(None, slice_of("n1", [card(1)], name="b", count=2))
    before = inventory.devices.structure.version
    inventory.slice_changed(None, slice_of("n1", [card(1, product="A10G")], name="b", count=2))
    assert inventory.devices.structure.since(before).tolist() == [row(inventory, "gpu-1")]


def test_kinds_are_shared_by_devices_with_the_same_capacities():
    inventory = furnished("n1", "n2")
    inventory.slice_changed(None, slice_of("n1", [card(0)], driver="other"))
    kinds = inventory.devices.kind[: inventory.devices.size]
    assert kinds.tolist() == [0, 0, 0, 0, 1]
    assert [sample.id.driver for sample in inventory.devices.kind_samples] == [DRIVER, "other"]


def test_news_that_come_twice_change_nothing():
    inventory = furnished("n1")
    version = inventory.devices.structure.version
    inventory.node_changed(node("n1"), node("n1"))
    inventory.node_changed(None, node("n1"))
    assert inventory.devices.structure.version == version
    inventory.slice_changed(None, slice_of("n1", [card(0), card(1)]))
    assert (inventory.devices.size, inventory.nodes.count) == (2, 1)
    inventory.slice_changed(slice_of("n1", []), None)
    inventory.slice_changed(slice_of("n1", []), None)
    inventory.node_changed(node("n1"), None)
    inventory.node_changed(node("n1"), None)
    assert (int(inventory.devices.active.sum()), inventory.nodes.count) == (0, 0)


# --- taint rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, set()),
        ({}, {"n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1"}),
        ({"driver": DRIVER}, {"n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1"}),
        ({"driver": "other"}, set()),
        ({"pool": "n2"}, {"n2/gpu-0", "n2/gpu-1"}),
        ({"device": "gpu-1"}, {"n1/gpu-1", "n2/gpu-1"}),
        ({"driver": DRIVER, "pool": "n1", "device": "gpu-0"}, {"n1/gpu-0"}),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),  # sets have no order
)
def test_a_rule_taints_what_it_selects(selector, expected):
    """Without a selector nothing is selected, with an empty one everything (resource/v1 DeviceTaintSelector)."""
    inventory = furnished("n1", "n2")
    made = rule(selector)
    inventory.taint_rule_changed(None, made)
    assert set(tainted(inventory)) == expected
    inventory.taint_rule_changed(made, None)
    assert tainted(inventory) == {}


def test_rules_reach_devices_that_come_later_and_those_of_pools_that_cannot_be_used():
    inventory = Inventory()
    inventory.node_changed(None, node())
    inventory.slice_changed(None, slice_of("n1", [card(0)], name="a", count=2))
    inventory.taint_rule_changed(None, rule({"driver": DRIVER}))
    inventory.slice_changed(None, slice_of("n1", [card(1)], name="b", count=2))
    assert tainted(inventory) == {"n1/gpu-0": ["broken"], "n1/gpu-1": ["broken"]}


def test_a_rule_that_changes_lets_go_of_what_it_selected():
    inventory = furnished("n1", "n2")
    first = rule({"pool": "n1"})
    inventory.taint_rule_changed(None, first)
    inventory.taint_rule_changed(first, rule({"pool": "n2"}, key="worse"))
    assert tainted(inventory) == {"n2/gpu-0": ["worse"], "n2/gpu-1": ["worse"]}


def test_a_taint_kind_keeps_its_taints_when_its_first_device_gets_another():
    inventory = furnished("n1", "n2")
    inventory.taint_rule_changed(None, rule({"driver": DRIVER}, name="fence", key="fence"))
    inventory.taint_rule_changed(None, rule({"pool": "n1"}, name="zz", timeAdded="2026-01-01T00:00:00Z"))
    columns = inventory.devices
    for name, keys in (("n1", ["fence", "broken"]), ("n2", ["fence"])):
        sample = columns.taint_samples[columns.taint_kind[row(inventory, "gpu-0", name)]]
        assert [taint.key for taint in sample.taints] == keys
    kinds = len(columns.taint_kinds)
    inventory.taint_rule_changed(None, rule({"pool": "n1"}, name="zz", timeAdded="2026-02-02T00:00:00Z"))
    assert len(columns.taint_kinds) == kinds


# --- the rest ------------------------------------------------------------------------------------------------------


def test_namespaces_may_allow_admin_access():
    inventory = Inventory()
    labels = {"resource.kubernetes.io/admin-access": "true"}
    open_one = msgspec.convert({"metadata": {"name": "ops", "labels": labels}}, Namespace)
    inventory.namespace_changed(None, open_one)
    inventory.namespace_changed(None, msgspec.convert({"metadata": {"name": "default"}}, Namespace))
    assert inventory.admin_namespaces() == {"ops"}
    inventory.namespace_changed(open_one, None)
    assert inventory.admin_namespaces() == set()


def test_a_change_log_forgets_the_oldest():
    log = ChangeLog()
    for number in range(KEPT + 1):
        log.add(number % 7)
    assert log.version == KEPT + 1
    assert log.since(0) is None
    assert log.since(log.version - 2).tolist() == sorted([(KEPT - 1) % 7, KEPT % 7])
    assert log.since(log.version).tolist() == []


def test_recent_values_stay_and_the_others_go():
    made = []
    recent = LruCache(2)
    for key in "abacab":
        recent.get(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "b"]
    assert [recent.find(key) for key in "abc"] == ["a", "b", None]
