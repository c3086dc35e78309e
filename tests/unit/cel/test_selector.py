"""The public face of hami_dra.cel: compiling, evaluating, what a selector reads, and what a device looks like to it."""

import pytest

from hami_dra.api.quantity import Quantity
from hami_dra.api.resource import Device, DeviceAttribute, DeviceCapacity
from hami_dra.api.semver import SemVer
from hami_dra.cel import CompileError, DeviceInput, EvaluationError, Features, compile_selector, quote

DRIVER = "gpu.example.com"
A = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'
DEVICE = DeviceInput.of(
    DRIVER,
    {
        "productName": {"string": "NVIDIA A10G"},
        "index": {"int": 3},
        "healthy": {"bool": True},
        "driverVersion": {"version": "550.54.15"},
        "zones": {"strings": ["a", "b"]},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    },
    {"memory": "23028Mi", "cores": 100},
    allow_multiple_allocations=True,
)


def matches(expression, device=DEVICE, **features):
    return compile_selector(expression, features=Features(**features)).evaluate(device)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f'{A}.productName == "NVIDIA A10G"', True),
        (f'{A}.productName.lowerAscii().contains("a10")', True),
        (f"{A}.index in [1, 2, 3]", True),
        (f"{A}.index == 3.0", True),
        (f'{C}.memory.compareTo(quantity("20Gi")) >= 0', True),
        (f'{C}.memory.isGreaterThan(quantity("24Gi"))', False),
        (f'{A}.driverVersion.isGreaterThan(semver("535.0.0"))', True),
        (f'{A}.?missing.orValue("none") == "none"', True),
        (f"has({A}.missing) || {A}.index > 2", True),
        (f'{A}.zones.includes("b") && {A}.zones.exists(z, z.startsWith("a"))', True),
        (f'cel.bind(gpu, {A}, gpu.index > 1 && gpu.productName.matches("A(10G|100)$"))', True),
        (f'device.driver == "{DRIVER}" && device.allowMultipleAllocations', True),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"', True),
        ('"nope.io" in device.attributes', False),
        ('has(device.attributes["nope.io"].x)', False),
    ],
)
def test_verdicts(expression, expected):
    assert matches(expression) is expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.foo == 1", "undefined field 'foo'"),
        ("gpu.index == 1", "undeclared reference to 'gpu'"),
        (f"{A}.index", None),
        ("1 + 1", "must evaluate to bool or the unknown type, not int"),
        ('"a" + 1 == "a1"', "found no matching overload for '_+_' applied to '(string, int)'"),
        (f'{C}.memory >= quantity("1Gi")', "found no matching overload for '_>=_'"),
        (f'{A}.productName.matches("(")', "invalid matches argument"),
        (f'{A}.productName.matches("(?!x)")', "invalid matches argument"),
        ('[1, "a"].size() == 2', "expected type 'int' but found 'string'"),
        ("int('x') == 1", "program instantiation failed: type conversion error from 'string' to 'int'"),
        ("1 ==", "Syntax error"),
        ("'abc", "token recognition error"),
        ("for == 1", "reserved identifier: for"),
        ("[1].all(1, true)", "argument must be a simple name"),
        ("has(device)", "invalid argument to has() macro"),
        ("x" * 100_001, "expression code point size exceeds limit"),
        ("'\ud800' == ''", "not valid UTF-8"),
    ],
)
def test_compile_errors(expression, message):
    if message is None:
        compile_selector(expression)  # of unknown type until it is evaluated
        return
    with pytest.raises(CompileError) as raised:
        compile_selector(expression)
    assert message in str(raised.value)


def test_compile_errors_show_the_place():
    with pytest.raises(CompileError) as raised:
        compile_selector('true &&\n  device.drivr == "x"')
    assert str(raised.value) == (
        "compilation failed: ERROR: <input>:2:9: undefined field 'drivr'\n |   device.drivr == \"x\"\n | ........^"
    )


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f"{A}.missing == 1", "no such key: missing"),
        (f"{A}.productName > 1", "no such overload"),
        (f"{A}.index / 0 == 1", "division by zero"),
        (f"{A}.index + 9223372036854775807 > 0", "integer overflow"),
        (f"{A}.productName", "CEL result of type string could not be converted to bool"),
        (f"{A}.zones[2] == 'c'", "index out of bounds: 2"),
    ],
)
def test_evaluation_errors(expression, message):
    with pytest.raises(EvaluationError, match=message):
        matches(expression)


def test_an_error_is_absorbed_only_where_the_other_side_decides():
    missing = f"{A}.missing == 1"
    assert matches(f"{missing} || true")
    assert matches(f"true || {missing}")
    assert not matches(f"{missing} && false")
    assert not matches(f"[1, 2].all(x, x > 1 && {missing})")
    with pytest.raises(EvaluationError):
        matches(f"{missing} || false")


def test_selectors_are_compiled_once():
    expression = f"{A}.index == 12345"
    assert compile_selector(expression) is compile_selector(expression)
    for _ in range(2):
        with pytest.raises(CompileError):
            compile_selector("nope")


def test_features_matter_for_new_objects_only():
    lists = f'{A}.zones.includes("a")'
    assert matches(lists)
    assert matches(lists, stored=False, list_type_attributes=True)
    with pytest.raises(CompileError, match="undeclared reference to 'includes'"):
        matches(lists, stored=False)
    assert matches("device.allowMultipleAllocations", consumable_capacity=False)
    with pytest.raises(CompileError, match="undefined field"):
        matches("device.allowMultipleAllocations", consumable_capacity=False, stored=False)


@pytest.mark.parametrize(
    ("expression", "names", "complete"),
    [
        (f'{A}.productName == "x" && {C}.memory.isInteger()', {(DRIVER, "productName"), (DRIVER, "memory")}, True),
        (f'{A}["a"] == 1 || {A}.?b.hasValue() || has({A}.c)', {(DRIVER, "a"), (DRIVER, "b"), (DRIVER, "c")}, True),
        (f"cel.bind(d, {A}, d.a == 1)", {(DRIVER, "a")}, True),
        (f"cel.bind(d, {A}, d.a == 1 && d.size() > 1)", {(DRIVER, "a")}, False),
        ("device.attributes[device.driver].a == 1", {(None, "a")}, False),
        (f"{A}[device.driver] == 1", set(), False),
        (f'"a" in {A}', {(DRIVER, "a")}, True),
        ('"d" in device.attributes', set(), False),
        ("device.attributes.exists(d, d == 'x')", set(), False),
        ("dyn(device).driver == 'x'", set(), False),
        ("device.driver == 'x'", set(), True),
    ],
)
def test_references(expression, names, complete):
    selector = compile_selector(expression)
    assert selector.attributes == names
    assert selector.references.complete is complete


def test_device_input_sorts_names_by_domain():
    assert DEVICE.attributes[DRIVER]["driverVersion"] == SemVer(550, 54, 15)
    assert DEVICE.attributes["resource.kubernetes.io"] == {"pcieRoot": "pci0000:00"}
    assert DEVICE.capacity[DRIVER] == {"memory": Quantity.parse("23028Mi"), "cores": Quantity.parse("100")}


def test_device_input_of_a_published_device():
    device = Device(
        name="gpu-0",
        attributes={"index": DeviceAttribute(int_=3), "other.io/x": DeviceAttribute(bools=(True, False))},
        capacity={"memory": DeviceCapacity(value="1Gi")},
    )
    seen = DeviceInput.from_device(DRIVER, device)
    assert seen.attributes == {DRIVER: {"index": 3}, "other.io": {"x": [True, False]}}
    assert matches('device.attributes["other.io"].x.exists(x, !x)', seen)
    assert not matches("device.allowMultipleAllocations", seen)


@pytest.mark.parametrize(
    ("attributes", "capacity", "message"),
    [
        ({"v": {"version": "v1"}}, {}, "attribute v: parse semantic version"),
        ({"v": {}}, {}, "attribute v: unsupported attribute value"),
        ({"v": {"int": "1"}}, {}, "attribute v: Expected `int"),
        ({}, {"memory": "1GB"}, "capacity memory: '1GB' is not a quantity"),
    ],
)
def test_a_device_that_kubernetes_could_not_read_fails_every_selector(attributes, capacity, message):
    device = DeviceInput.of(DRIVER, attributes, capacity)
    with pytest.raises(EvaluationError, match=message):
        matches("true", device)


def test_texts_of_a_file_that_are_no_unicode_do_not_break_a_pattern():
    device = DeviceInput.of(DRIVER, {"name": {"string": "a\ud800"}})
    assert matches(f'{A}.name.matches("^a.+$")', device)


def test_quote():
    assert quote('T4" || true || "') == r'"T4\" || true || \""'
    assert quote("a\\\n\u00e9\U0001f600") == r'"a\\\u000a\u00e9\U0001f600"'
    assert not matches(f"{A}.productName == " + quote('x" || true || "'))
