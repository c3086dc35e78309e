"""Equal parts of slices are kept once, whatever else differs, and nothing else changes."""

import json

from hami_dra.api import kinds
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.kube.decoding import read_event, read_object, read_page


def body(node):
    (found,) = slice_bodies(machine_pools(machine("dgx-h100", node)))
    return found


def test_two_nodes_share_what_is_equal():
    page = json.dumps({"metadata": {}, "items": [body("n1"), body("n2")]}).encode()
    one, two = (each.spec.devices[0] for each in read_page(kinds.RESOURCE_SLICE, page).items)
    for name in ("hami.io/productName", "hami.io/links", "driverVersion"):
        assert one.attributes[name] is two.attributes[name]
    assert one.capacity["memory"] is two.capacity["memory"]
    assert one.attributes["hami.io/uuid"].string != two.attributes["hami.io/uuid"].string


def test_cards_of_one_model_share_their_capacities_and_others_keep_theirs():
    small = body("n2")
    small["spec"]["devices"][3]["capacity"]["memory"]["value"] = "1Gi"
    page = json.dumps({"metadata": {}, "items": [body("n1"), small]}).encode()
    one, two = (each.spec.devices for each in read_page(kinds.RESOURCE_SLICE, page).items)
    assert all(each.capacity is one[0].capacity for each in (*one, *two[:3], *two[4:]))
    assert two[3].capacity["memory"].value == "1Gi"


def test_events_share_too():
    line = json.dumps({"type": "ADDED", "object": body("n3")}).encode()
    one = read_event(kinds.RESOURCE_SLICE, line).object.spec.devices
    assert one[0].capacity["memory"] is one[7].capacity["memory"]


def test_nothing_else_changes():
    raw = body("n4")
    found, _ = read_object(kinds.RESOURCE_SLICE, json.dumps(raw).encode())
    for given, device in zip(raw["spec"]["devices"], found.spec.devices, strict=True):
        for name, value in given["attributes"].items():
            ((field, expected),) = value.items()
            assert getattr(device.attributes[name], {"int": "int_", "bool": "bool_"}.get(field, field)) == expected
        assert {name: each.value for name, each in device.capacity.items()} == {
            name: each["value"] for name, each in given["capacity"].items()
        }
