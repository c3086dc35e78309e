"""Selectors that mean harm: each ends with Kubernetes' own error, before it has taken much time or memory.

What is asserted is the error and the counters; a selector that gets away shows as a test that does not end.
"""

import pytest

from hami_dra.cel import CompileError, DeviceInput, EvaluationError, compile_selector
from hami_dra.cel.meter import ALLOCATION_LIMIT, COST_LIMIT, WORK_LIMIT, Meter
from hami_dra.cel.selector import SMALL_DEVICE

DEVICE = DeviceInput.of("d.io", {"name": {"string": "T4"}})
TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


def nested(depth):
    expression = "true"
    for level in range(depth):
        expression = f"{TEN}.all(x{level}, {expression})"
    return expression


def grown(first, step, use, times=40):
    """cel.bind(v0, first, cel.bind(v1, step of v0, ... use of the last))"""
    names = [f"cel.bind(v0, {first}, "]
    names += [f"cel.bind(v{level}, {step.format(f'v{level - 1}')}, " for level in range(1, times)]
    return "".join(names) + use.format(f"v{times - 1}") + ")" * times


HOSTILE = {
    "a loop in a loop": nested(7),
    "a long range": "lists.range(1000000000).size() > 0",
    "a range that just fits, with a loop": "lists.range(900000).all(x, x >= 0)",
    "a loop over nothing that costs": "lists.range(900000).exists_one(x, false)",
    "a text that doubles": grown('"aaaaaaaaaa"', "{0} + {0}", "{}.size() > 0"),
    "a list that doubles": grown("[1, 2, 3]", "{0} + {0}", "{}.size() > 0"),
    "a text that replaces itself": grown('"aaaaaaaaaa"', '{0}.replace("a", {0})', "{}.size() > 0"),
    "a text that is quoted": grown(r'"\"\"\"\""', "strings.quote({})", "{}.size() > 0"),
    "a list of lists of lists, compared": grown("[1]", "[{0}, {0}]", "{0} == {0}"),
    "a list of lists of lists, shown": grown("[1]", "[{0}, {0}]", '"%s".format([{0}]).size() > 0'),
    "a list of lists of lists, flattened": grown(
        "dyn([1])", "[dyn({0}), dyn({0})]", "[dyn({0})].flatten(100).size() > 0"
    ),
    "a list of lists of lists, searched": grown("dyn([1])", "[dyn({0}), dyn({0})]", "[dyn({0})].includes(1)"),
    "precision": '"%.1000000000f".format([1.0]).size() > 0',
    "width": '"%.1000000000e".format([1.0]).size() > 0',
    "a long separator": f'lists.range(3000).map(x, "a").join("{"b" * 50_000}").size() > 0',
    "all pairs": "lists.range(5000).distinct().size() > 0",
    "all pairs of two sets": "cel.bind(l, lists.range(100000), sets.equivalent(l, l.map(x, -x)))",
    "equal lists, again and again": "cel.bind(l, lists.range(30000), l.all(x, l == l))",
    "long searches": "cel.bind(l, lists.range(30000), l.all(x, l.indexOf(-1) == -1))",
    "empty matches": f'lists.range(1000).map(x, "{"a" * 9_000}".findAll("")).size() > 0',
    "patterns that are made up": 'lists.range(9000).all(x, "a".matches("(a|b){1,900}" + string(x)) || true)',
    "many parts": f'lists.range(3000).map(x, "{"a" * 9_000}".split("")).size() > 0',
    "many parameters": f'lists.range(9000).map(x, url("/?{"a&" * 4_000}").getQuery()).size() > 0',
    "addresses that are none": f'lists.range(100000).all(x, isIP("{":" * 9_000}") || true)',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_ends_with_the_error_of_kubernetes(expression):
    selector = compile_selector(expression)
    with pytest.raises(EvaluationError, match="operation cancelled: actual cost limit exceeded"):
        selector.evaluate(DEVICE)
    meter = Meter()
    with pytest.raises(Exception, match="cost limit"):
        selector.run_metered(DEVICE, meter)
    over = meter.cost > COST_LIMIT, meter.allocated > ALLOCATION_LIMIT, meter.worked > WORK_LIMIT
    assert sum(over) <= 1, "only a walk through nested lists ends before its steps are counted"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "expression",
    [
        "(" * 90_000,
        "[" * 300 + "]" * 300,
        "a." * 49_000,
        "1" + " + 1" * 300 + " > 0",
        "true ? " * 300 + "true",
        "device" + ".a" * 300 + " == 1",
        'device.attributes["d.io"].?name' + ".optMap(x, x)" * 30 + ".hasValue()",
        grown("1", "{{{0}: {0}}}", "true"),
        "9" * 90_000 + " > 0",
        '"a".matches("((a{1,1000}){1,1000}){1,1000}")',
        "int('" + "9" * 50_000 + "') > 0",
    ],
    ids=lambda expression: expression[:20],
)
def test_what_is_too_large_is_not_even_compiled(expression):
    with pytest.raises(CompileError):
        compile_selector(expression)


def test_the_limits_of_kubernetes_are_within_reach():
    assert compile_selector("(" * 240 + "true" + ")" * 240).evaluate(DEVICE)
    assert compile_selector("1" + " + 1" * 240 + " > 0").evaluate(DEVICE)
    assert compile_selector("true" + " && true" * 2_000).evaluate(DEVICE)
    assert compile_selector("lists.range(700).map(x, -x).sort()[0] == -699").evaluate(DEVICE)
    assert compile_selector(nested(4)).evaluate(DEVICE)


def test_a_large_device_is_counted_where_a_small_one_need_not_be():
    pattern = "a" * 400
    selector = compile_selector(f'device.attributes["d.io"].name.matches("{pattern}")')
    small = DeviceInput.of("d.io", {"name": {"string": "a" * SMALL_DEVICE}})
    assert selector.evaluate(small)
    large = DeviceInput.of("d.io", {"name": {"string": "b" * 200_000}})
    with pytest.raises(EvaluationError, match="cost limit"):
        selector.evaluate(large)


def test_costs_of_the_common_forms():
    """As Kubernetes counts: one for the variable and each selection, and what the function is worth."""
    name = 'device.attributes["d.io"].name'
    assert compile_selector(f'{name} == "T4"').cost(DEVICE) == 5
    assert compile_selector(f'has({name}) && {name}.startsWith("T")').cost(DEVICE) == 8
    assert compile_selector('[1, 2, 3].exists(x, x == 2) && "a" in ["a"]').cost(DEVICE) == 16
