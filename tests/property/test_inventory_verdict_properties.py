"""A verdict that devices share is the verdict of each."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.inventory.inventory import Inventory
from hami_dra.cel import EvaluationError, compile_selector
from tests.cards import slice_of

DRIVERS = ["a.example.com", "b.example.com"]
NAMES = ["x", "y", "a.example.com/x", "b.example.com/x", "hami.io/y"]
READS = [
    'device.attributes["a.example.com"].x',
    'device.attributes["b.example.com"].?x.orValue(1)',
    'device.attributes["hami.io"].y',
    "device.attributes[device.driver].?y.orValue(2)",
    'int(device.capacity["a.example.com"].?x.orValue(quantity("3")).asInteger())',
    'size(device.attributes["hami.io"])',
]  # fmt: skip
TESTS = [
    'device.driver == "a.example.com"',
    "device.allowMultipleAllocations",
    '"hami.io" in device.attributes',
    'has(device.attributes["a.example.com"].x)',
    'cel.bind(d, device.attributes["a.example.com"], d.?x.orValue(0) == 1)',
    'device.attributes["hami.io"].exists(name, name == "y")',
]

values = st.sampled_from(
    [{"int": 1}, {"int": 2}, {"string": "1"}, {"bool": True}, {"version": "1.0.0"}, {"version": "?"}, {}]
)
devices = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "2", "?"]), max_size=2),
        st.booleans(),
    ),
    min_size=2,
    max_size=10,
)
atoms = st.one_of(
    st.sampled_from(TESTS), st.builds(lambda read, value: f"{read} == {value}", st.sampled_from(READS), st.integers(1, 3))
)  # fmt: skip
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
    ),
    max_leaves=3,
)


@settings(max_examples=300, deadline=None)
@given(devices, st.lists(expressions, min_size=1, max_size=3))
def test_columns_are_what_each_device_would_get(published, asked):
    inventory = Inventory()
    for driver in DRIVERS:
        made = [
            {
                "name": f"d{number}",
                "attributes": attributes,
                "capacity": {name: {"value": value} for name, value in capacity.items()},
                "allowMultipleAllocations": shared,
            }
            for number, (attributes, capacity, shared) in enumerate(published)
        ]
        inventory.slice_changed(None, slice_of("n1", made, driver=driver))
    for expression in asked:
        selector = compile_selector(expression)
        column = inventory.verdicts.matching(expression)
        assert len(column) == len(DRIVERS) * len(published)
        for row in range(len(column)):
            try:
                expected = selector.evaluate(inventory.devices.device(row).selector_input)
            except EvaluationError:
                expected = True
            assert column[row] == expected, (expression, inventory.devices.device(row).spec)
