"""How the cards of a node are wired, as the columns keep it: by number, shared between equal machines, mended by difference."""

import numpy as np

from controller.inventory.inventory import Inventory
from controller.inventory.layouts import NO_POSITION
from tests.cards import DRIVER, card, node, slice_of


def wired(index, links="", distance="", group=0, **extra):
    made = card(index, **extra)
    made["attributes"] = made["attributes"] | {
        "hami.io/links": {"string": links},
        "hami.io/distance": {"string": distance},
        "hami.io/linkGroup": {"int": group},
    }
    return made


def inventory_of(**devices):
    inventory = Inventory()
    for name, cards in devices.items():
        inventory.node_changed(None, node(name))
        inventory.slice_changed(None, slice_of(name, cards))
    return inventory


def layout(inventory, name="n1", driver=DRIVER):
    found = inventory.layouts.of(inventory.nodes.index_of(name), driver)
    return None if found is None else found[0]


def test_rows_are_read_by_number_whatever_the_order_of_publication_and_the_gaps():
    """Card 1 is gone: its column is skipped in the rows of the others, and positions follow the numbers."""
    cards = [wired(2, "40-a", "XX-S", 2), wired(0, "-h4z", "-SXX", 1), wired(3, "z0a-", "XXS-", -5)]
    found = layout(inventory_of(n1=cards))
    assert found.index == (0, 2, 3)
    assert found.lanes == ((0, 4, 35), (4, 0, 10), (35, 10, 0))
    assert found.distance == ("-XX", "X-S", "XS-")
    assert found.group == (1, 2, 0)


def test_what_is_published_wrongly_is_not_known():
    found = layout(inventory_of(n1=[wired(0, "-", "-"), wired(1, "?9", "S"), card(2)]))
    assert found.lanes == ((0, 0, 0), (0, 0, 0), (0, 0, 0))
    assert found.distance == ("-00", "S-0", "00-")
    twice = [card(0) | {"name": "a"}, card(0) | {"name": "b"}]
    assert layout(inventory_of(n1=twice)).distance == ("00", "00")


def test_equal_machines_share_one_layout_and_numbers_tell_them_apart():
    pair = [wired(0, "-4", "-S", 1), wired(1, "4-", "S-", 1)]
    inventory = inventory_of(n1=pair, n2=pair, n3=[card(0), card(1)])
    assert layout(inventory, "n1") is layout(inventory, "n2")
    numbers = inventory.layouts.numbers(DRIVER)[[inventory.nodes.index_of(name) for name in ("n1", "n2", "n3")]]
    assert numbers[0] == numbers[1] != numbers[2]
    assert inventory.layouts.numbered(int(numbers[0])) is layout(inventory, "n1")


def positions(inventory):
    inventory.layouts.drivers()  # brings them up to date
    return inventory.layouts.position


def test_changes_of_slices_nodes_and_labels_are_followed():
    inventory = inventory_of(n1=[card(0), card(1)])
    assert layout(inventory).index == (0, 1)
    inventory.slice_changed(None, slice_of("n1", [card(1), card(5)], generation=2, version="2"))
    assert layout(inventory).index == (1, 5)
    inventory.node_changed(node("n1"), node("n1", labels={"node.kubernetes.io/instance-type": "inf2.xlarge"}))
    assert layout(inventory).instance_type == "inf2.xlarge"
    position = positions(inventory)
    rows = inventory.layouts.of(inventory.nodes.index_of("n1"), DRIVER)[1]
    assert position[rows].tolist() == [0, 1]
    inventory.slice_changed(slice_of("n1", [card(1)]), None)
    assert layout(inventory) is None
    assert inventory.layouts.numbers(DRIVER).tolist() == [NO_POSITION]


def test_a_node_that_goes_and_comes_back():
    inventory = inventory_of(n1=[card(0)])
    assert layout(inventory) is not None
    row = inventory.nodes.index_of("n1")
    inventory.node_changed(node("n1"), None)
    assert inventory.layouts.of(row, DRIVER) is None
    inventory.node_changed(None, node("n1"))
    assert layout(inventory).index == (0,)


def test_drivers_without_rules_and_parts_of_cards_have_no_place():
    part = card(0) | {"name": "gpu-0-mig-1g.5gb-0", "allowMultipleAllocations": None}
    part["attributes"] = part["attributes"] | {"profile": {"string": "1g.5gb"}}
    inventory = inventory_of(n1=[card(0), part])
    inventory.slice_changed(None, slice_of("n1", [card(0)], driver="gpu.example.com"))
    assert layout(inventory).index == (0,)
    assert layout(inventory, driver="gpu.example.com") is None
    assert np.count_nonzero(positions(inventory)[: inventory.devices.size] >= 0) == 1
