"""Which devices an expression selects, kept as a column."""

import pytest

from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from controller.inventory.verdicts import KEPT
from hami_dra.cel import EvaluationError, Selector, compile_selector
from tests.cards import DRIVER, card, node, slice_of, whole

T4 = 'device.attributes["hami.io"].productName == "Tesla T4"'


def furnished(*devices, driver=DRIVER):
    inventory = Inventory()
    inventory.node_changed(None, node())
    inventory.slice_changed(None, slice_of("n1", devices, driver=driver))
    return inventory


def selected(inventory, expression):
    column = inventory.verdicts.matching(expression)
    assert len(column) == inventory.devices.size
    return {inventory.devices.device(row).id.device for row in range(len(column)) if column[row]}


@pytest.fixture
def evaluations(monkeypatch):
    """Every evaluation of a selector, by its expression."""
    seen = []
    evaluate = Selector.evaluate
    monkeypatch.setattr(Selector, "evaluate", lambda self, *args: seen.append(self.expression) or evaluate(self, *args))
    return seen


def test_each_device_has_its_verdict():
    inventory = furnished(card(0), card(1, product="A10G"), card(2))
    assert selected(inventory, T4) == {"gpu-0", "gpu-2"}


def test_an_expression_that_fails_on_a_device_may_select_it():
    """Kubernetes fails the pod when the search gets there; the search, not the prefilter, has to say so."""
    inventory = furnished(card(0), whole(1))
    with pytest.raises(EvaluationError):
        compile_selector(T4).evaluate(inventory.devices.device(1).selector_input)
    assert selected(inventory, T4) == {"gpu-0", "dev-1"}


def test_an_expression_that_does_not_compile_may_select_everything():
    assert selected(furnished(card(0), whole(1)), "device.nonsense(") == {"gpu-0", "dev-1"}


def test_nothing_is_evaluated_twice(evaluations):
    inventory = furnished(card(0), card(1, product="A10G"))
    selected(inventory, T4)
    before = len(evaluations)
    selected(inventory, T4)
    inventory.slice_changed(None, slice_of("n2", [card(0)]))
    inventory.node_changed(None, node("n2"))
    assert selected(inventory, T4) == {"gpu-0"}
    assert len(evaluations) == before


def test_devices_that_agree_in_what_is_read_are_evaluated_once(evaluations):
    inventory = furnished(*(card(number) for number in range(8)))
    assert len(selected(inventory, T4)) == 8
    assert len(evaluations) == 1
    assert selected(inventory, 'device.attributes["hami.io"].uuid in ["GPU-3", "GPU-5"]') == {"gpu-3", "gpu-5"}
    assert len(evaluations) == 1 + 8


def test_what_is_read_may_be_a_capacity_the_driver_or_whether_devices_are_shared():
    inventory = furnished(card(0), card(1, memory="80Gi"), whole(2))
    inventory.slice_changed(None, slice_of("n1", [{**card(3), "attributes": {"memory": {"int": 7}}}], driver="x"))
    assert selected(inventory, f'device.capacity["{DRIVER}"].?memory.hasValue()') == {"gpu-0", "gpu-1"}
    big = 'device.capacity[device.driver].?memory.orValue(quantity("0")).isGreaterThan(quantity("20Gi"))'
    assert selected(inventory, big) == {"gpu-1"}
    assert selected(inventory, "device.allowMultipleAllocations") == {"gpu-0", "gpu-1", "gpu-3"}
    assert selected(inventory, 'device.driver == "x"') == {"gpu-3"}
    assert selected(inventory, 'device.attributes["x"].?memory.orValue(0) == 7') == {"gpu-3"}
    assert selected(inventory, 'size(device.attributes["hami.io"]) > 0') == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize(
    "broken",
    [
        {"attributes": {"hami.io/productName": {"string": "A10G"}, "x": {}}},
        {"attributes": {"hami.io/productName": {"string": "A10G"}, "x": {"version": "one"}}},
        {"attributes": {"hami.io/productName": {"string": "A10G"}}, "capacity": {"memory": {"value": "much"}}},
    ],
    ids=["no value", "version", "quantity"],
)
def test_a_device_that_no_selector_can_read_is_for_the_search_to_report(broken):
    inventory = furnished(card(0, product="A10G"), {"name": "broken", **broken})
    assert selected(inventory, T4) == {"broken"}


def test_versions_can_be_read():
    made = {"name": "new", "attributes": {"driverVersion": {"version": "570.1.0"}}}
    inventory = furnished(made, {**made, "name": "old", "attributes": {"driverVersion": {"version": "1.0.0"}}})
    newer = f'device.attributes["{DRIVER}"].driverVersion.isGreaterThan(semver("500.0.0"))'
    assert selected(inventory, newer) == {"new"}


def test_a_device_that_is_published_anew_is_judged_anew():
    inventory = furnished(card(0))
    assert selected(inventory, T4) == {"gpu-0"}
    inventory.slice_changed(slice_of("n1", []), slice_of("n1", [card(0, product="A10G"), card(1)]))
    assert selected(inventory, T4) == {"gpu-1"}
    inventory.slice_changed(slice_of("n1", []), None)
    assert selected(inventory, T4) == set()


def test_lists_are_read():
    inventory = furnished({"name": "multi", "attributes": {"hami.io/numa": {"ints": [0, 1]}}}, card(0))
    numa = '1 in device.attributes["hami.io"].?numa.orValue([])'
    assert "multi" in selected(inventory, numa)
    assert "gpu-0" not in selected(inventory, numa)


def test_many_expressions_do_not_pile_up():
    inventory = furnished(card(0), card(1))
    for number in range(KEPT + 10):
        uuid = f'device.attributes["hami.io"].uuid == "GPU-{number}"'
        assert len(selected(inventory, uuid)) == (1 if number < 2 else 0)
    assert selected(inventory, 'device.attributes["hami.io"].uuid == "GPU-0"') == {"gpu-0"}


def test_drivers_that_expressions_select():
    inventory = furnished(card(0))
    inventory.slice_changed(None, slice_of("n1", [card(0), whole(1)], driver="other"))
    verdicts = inventory.verdicts
    assert verdicts.drivers((T4,)) == {DRIVER, "other"}
    assert verdicts.drivers((T4, 'device.driver == "other"')) == {"other"}
    assert verdicts.drivers((T4, 'device.driver == "none"')) == frozenset()
    inventory.slice_changed(slice_of("n1", [], driver="other"), None)
    assert verdicts.drivers((T4,)) == {DRIVER}


def test_rows_that_are_free_are_not_selected():
    inventory = furnished(card(0))
    row = inventory.devices.row_of(DeviceId(DRIVER, "n1", "gpu-0"))
    inventory.slice_changed(slice_of("n1", []), None)
    assert not inventory.verdicts.matching("true")[row]
    inventory.slice_changed(None, slice_of("n2", [card(5)]))
    assert inventory.devices.row_of(DeviceId(DRIVER, "n2", "gpu-5")) == row
    assert selected(inventory, "true") == {"gpu-5"}
