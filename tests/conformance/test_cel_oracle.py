"""Random selectors against Kubernetes' own environment: the Go program in hack/oracle/cel. `make fuzz` asks far more.

Skipped loudly where it cannot be built (no Go, no module proxy); with REQUIRE_ALL=1 that is a failure.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings

from hack.oracle.oracle import ask
from hami_dra.cel.library import functions
from tests.support.cel_expressions import Expressions, as_question, verdict
from tests.support.failures import kept
from tests.support.oracles import conversation
from tests.support.selector_cases import LONGEST, compare, selector_cases


@pytest.fixture(scope="module")
def asking():
    yield from conversation("cel")


@pytest.mark.timeout(600)  # a first build with empty caches takes minutes
@settings(max_examples=1_000)
@given(case=selector_cases())
def test_same_verdict_as_kubernetes(asking, case):
    with kept("selector", case):
        compare(case, asking)


def test_same_cost_as_kubernetes_where_nothing_fails(asking):
    asked = expressions(7, 400)
    answers = ask("cel", map(as_question, asked))
    compared = 0
    for expression, answer in zip(asked, answers, strict=True):
        # an absorbed error costs cel-go more: it evaluates the other arguments all the same
        if isinstance(answer["expect"], bool) and not any(
            part in expression for part in ("missing", "&&", "||", "exists", "all(")
        ):
            ours, _, cost = verdict(expression)
            assert (ours, cost) == (answer["expect"], answer["cost"]), expression
            compared += 1
    assert compared > 50


LITERALS = (
    '"a"', "1", "1.5", 'b"a"', "true", '["a"]', '{"a": 1}', 'duration("1s")', 'timestamp("2020-01-01T00:00:00Z")',
    'quantity("1")', 'semver("1.0.0")', 'ip("1.1.1.1")', 'cidr("1.0.0.0/8")', 'url("http://a")', "int",
)  # fmt: skip
SYMBOLS = {"_[_]": "a[b]", "-_": "-a", "!_": "!a", "@in": "a in b"} | {
    f"_{symbol}_": f"a {symbol} b" for symbol in ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%")
}


def test_an_argument_of_open_type_becomes_what_the_first_overload_wants():
    """Whose order is Kubernetes'. Every function with several overloads of one shape, all its arguments open."""
    asked = [
        f"{{}}.all(a, b, {{}}.all(c, d, dyn({call}) == dyn(1) && {argument} == {literal}))"
        for call, arguments in calls_of_several_overloads()
        for argument in arguments
        for literal in LITERALS
    ]
    assert len(asked) > 500
    for expression, answer in zip(asked, ask("cel", map(as_question, asked)), strict=True):
        assert (verdict(expression)[0] == "compile-error") == (answer["expect"] == "compile-error"), expression


def calls_of_several_overloads():
    for name, overloads in sorted(functions.items()):
        shapes = Counter((overload.member, len(overload.params)) for overload in overloads)
        for (member, arity), count in shapes.items():
            arguments = "abcd"[:arity]
            if count < 2 or not arity or name in {"@sortByAssociatedKeys", "_[?_]"}:
                continue
            if name in SYMBOLS:
                yield SYMBOLS[name], arguments
            elif member:
                yield f"a.{name}({', '.join(arguments[1:])})", arguments
            else:
                yield f"{name}({', '.join(arguments)})", arguments


def expressions(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        expression = Expressions(draw, depth=draw.choice([1, 2, 3, 4])).selector()
        if len(expression) < LONGEST:
            found.append(expression)
    return found
