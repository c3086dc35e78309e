"""Random selectors against Kubernetes' own environment: the Go program in hack/oracle/cel. `make fuzz` asks far more.

Skipped loudly where it cannot be built (no Go, no module proxy); with REQUIRE_ALL=1 that is a failure.
"""

import random

import pytest
from hypothesis import given, settings

from hack.oracle.oracle import ask
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


def expressions(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        expression = Expressions(draw, depth=draw.choice([1, 2, 3, 4])).selector()
        if len(expression) < LONGEST:
            found.append(expression)
    return found
