"""matchAttribute and distinctAttribute, values and lists, and derived attributes."""

import pytest

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from tests.support.allocation import (
    DRIVER,
    allocate,
    alternative,
    claim,
    class_of,
    device,
    exactly,
    first_of,
    names_of,
    slice_of,
)

LISTS = FeatureGates(list_type_attributes=True)
ANYTHING = [class_of()]


def raw_device(name, **attributes):
    """Attributes as the API has them: x={"version": "1.0.0"}."""
    return device(name) | {"attributes": attributes}


def match(name, *requests):
    return {"matchAttribute": name, "requests": list(requests)}


def distinct(name, *requests):
    return {"distinctAttribute": name, "requests": list(requests)}


def chosen(devices, requests, *constraints, features=FeatureGates()):
    slices = [slice_of(*devices)]
    found = allocate(slices, claim(*requests, constraints=constraints), classes=ANYTHING, features=features)
    return None if found is None else names_of(found)[0]


PAIR = [exactly("a"), exactly("b")]
ISLANDS = [device("d0", island=0), device("d1", island=1), device("d2"), device("d3", island=1)]


def test_matching_devices_share_the_value_and_have_the_attribute():
    assert chosen(ISLANDS, PAIR, match(f"{DRIVER}/island")) == ["d1", "d3"]
    assert chosen(ISLANDS, [exactly("a", 3)], match(f"{DRIVER}/island")) is None


def test_distinct_devices_differ_and_have_the_attribute():
    assert chosen(ISLANDS, PAIR, distinct(f"{DRIVER}/island")) == ["d0", "d1"]
    assert chosen(ISLANDS, [exactly("a", 3)], distinct(f"{DRIVER}/island")) is None


def test_a_name_is_looked_up_in_full_then_bare_in_the_driver_s_domain():
    full = raw_device("d0", **{f"{DRIVER}/x": {"int": 1}, "x": {"int": 9}})
    bare = raw_device("d1", x={"int": 1})
    assert chosen([full, bare], PAIR, match(f"{DRIVER}/x")) == ["d0", "d1"]
    assert chosen([full, bare], PAIR, match("other.example.com/x")) is None
    standard = [raw_device(name, **{"resource.kubernetes.io/pcieRoot": {"string": "pci0"}}) for name in ("d0", "d1")]
    assert chosen(standard, PAIR, match("resource.kubernetes.io/pcieRoot")) == ["d0", "d1"]


def test_values_of_different_types_are_never_equal():
    devices = [raw_device("d0", x={"int": 1}), raw_device("d1", x={"bool": True}), raw_device("d2", x={"string": "1"})]
    assert chosen(devices, PAIR, match(f"{DRIVER}/x")) is None
    assert chosen(devices, [exactly("a", 3)], distinct(f"{DRIVER}/x")) == ["d0", "d1", "d2"]


def test_versions_match_as_written():
    devices = [raw_device(f"d{index}", x={"version": text}) for index, text in enumerate(("1.0.0", "1.0.1", "1.0.0"))]
    assert chosen(devices, PAIR, match(f"{DRIVER}/x")) == ["d0", "d2"]


def test_a_constraint_covers_the_requests_it_names():
    requests = [exactly("a"), exactly("b"), exactly("c")]
    assert chosen(ISLANDS, requests, match(f"{DRIVER}/island", "a", "c")) == ["d1", "d0", "d3"]
    assert chosen(ISLANDS, requests, match(f"{DRIVER}/island", "nobody")) == ["d0", "d1", "d2"]


def test_a_constraint_may_name_one_alternative_or_all_of_them():
    requests = [exactly("a"), first_of("b", alternative("x"), alternative("y"))]
    only_x = chosen(ISLANDS[:3], requests, match(f"{DRIVER}/island", "a", "b/x"))
    assert only_x == ["d0", "d1"]  # by b/y, which is free
    assert chosen(ISLANDS[:3], requests, match(f"{DRIVER}/island", "a", "b")) is None


def test_constraints_hold_together():
    devices = [device(f"d{index}", island=index // 2, model="ab"[index % 2]) for index in range(4)]
    found = chosen(devices, PAIR, match(f"{DRIVER}/model"), distinct(f"{DRIVER}/island"))
    assert found == ["d0", "d2"]


def test_one_shared_device_is_not_distinct_from_itself():
    shared = [device("d0", shared=True, serial=0), device("d1", shared=True, serial=1)]
    assert chosen(shared, PAIR) == ["d0", "d0"]
    assert chosen(shared, PAIR, distinct(f"{DRIVER}/serial")) == ["d0", "d1"]


# --- lists ---------------------------------------------------------------------------------------------------------------------------

ROOTS = [
    raw_device("d0", roots={"strings": ["a", "b"]}),
    raw_device("d1", roots={"strings": ["b", "c"]}),
    raw_device("d2", roots={"strings": ["a"]}),
    raw_device("d3", roots={"string": "c"}),
]


def test_lists_match_while_all_have_an_element_in_common():
    assert chosen(ROOTS, PAIR, match(f"{DRIVER}/roots"), features=LISTS) == ["d0", "d1"]
    assert chosen(ROOTS, [exactly("a", 3)], match(f"{DRIVER}/roots"), features=LISTS) is None
    assert chosen(ROOTS[1:], PAIR, match(f"{DRIVER}/roots"), features=LISTS) == ["d1", "d3"]


def test_lists_are_distinct_when_they_share_nothing():
    assert chosen(ROOTS, PAIR, distinct(f"{DRIVER}/roots"), features=LISTS) == ["d0", "d3"]
    assert chosen(ROOTS, [exactly("a", 3)], distinct(f"{DRIVER}/roots"), features=LISTS) is None
    assert chosen(ROOTS[1:3], PAIR, distinct(f"{DRIVER}/roots"), features=LISTS) == ["d1", "d2"]


@pytest.mark.parametrize("values", [{"ints": [1, 2]}, {"bools": [True]}, {"versions": ["1.0.0"]}])
def test_lists_of_every_type_are_known(values):
    devices = [raw_device("d0", x=values), raw_device("d1", x=values)]
    assert chosen(devices, PAIR, match(f"{DRIVER}/x"), features=LISTS) == ["d0", "d1"]
    assert chosen(devices, PAIR, distinct(f"{DRIVER}/x"), features=LISTS) is None


def test_without_the_gate_a_list_is_good_for_one_device_and_no_more():
    assert chosen(ROOTS[:2], [exactly("a")], match(f"{DRIVER}/roots")) == ["d0"]
    assert chosen(ROOTS[:2], PAIR, match(f"{DRIVER}/roots")) is None
    assert chosen(ROOTS[:2], PAIR, distinct(f"{DRIVER}/roots")) is None


# --- derived attributes ------------------------------------------------------------------------------------------------------------

DERIVED = FeatureGates(derived_attributes=True)


def deriving(expression, name="a", count=1):
    return exactly(name, count, derivedAttributes=[{"name": "derived/x", "expression": expression}])


def test_a_request_may_derive_what_its_devices_are_matched_by():
    devices = [device("d0", numa="n0"), device("d1", numa="n1"), device("d2", node="n1")]
    domain = f'device.attributes["{DRIVER}"]'
    requests = [deriving(f'{domain}.?numa.orValue("none")', "a"), deriving(f'{domain}.?node.orValue("else")', "b")]
    assert chosen(devices, requests, match("derived/x"), features=DERIVED) == ["d1", "d2"]


def test_a_derived_attribute_hides_a_published_one_for_its_request_only():
    devices = [raw_device("d0", **{"derived/x": {"string": "p"}}), raw_device("d1", **{"derived/x": {"string": "q"}})]
    requests = [deriving('"q"', "a"), exactly("b")]
    assert chosen(devices, requests, match("derived/x"), features=DERIVED) == ["d0", "d1"]


def test_derived_values_have_types_too():
    devices = [device("d0", x=1), device("d1", x="1")]
    request = deriving(f'device.attributes["{DRIVER}"].x', count=2)
    assert chosen(devices, [request], match("derived/x"), features=DERIVED) is None


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (
            f'device.attributes["{DRIVER}"].absent',
            r"derivedAttributes\[derived/x\] fails on device .*/d0: no such key: absent",
        ),
        ("nonsense(", r"derivedAttributes\[derived/x\] does not compile"),
        ("{1: 2}", "must evaluate to a primitive scalar .* not map"),
    ],
)
def test_a_derived_attribute_that_fails_is_an_error(expression, says):
    with pytest.raises(AllocatorError, match=says):
        chosen([device("d0")], [deriving(expression)], match("derived/x"), features=DERIVED)
    assert chosen([device("d0")], [deriving(expression)], features=DERIVED) == ["d0"]  # nobody asks for it
