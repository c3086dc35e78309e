"""Random selectors against Kubernetes' own environment: the Go program in hack/oracle/cel.

Skipped loudly where it cannot be built (no Go, no module proxy); with REQUIRE_ALL=1 that is a failure. Other expressions
and more of them: HAMI_DRA_ORACLE_SEED=11 HAMI_DRA_ORACLE_CASES=20000.
"""

import os
import random

import pytest

from hack.controlplane.build import BuildError
from hack.oracle.oracle import ask, ensure
from hami_dra.cel import Features
from tests.support.cel_expressions import Expressions, as_question, verdict

COUNT = int(os.environ.get("HAMI_DRA_ORACLE_CASES", "600"))
SEED = int(os.environ.get("HAMI_DRA_ORACLE_SEED", "7"))
# resource.Quantity.Sub negates an int64 without regard to overflow, and so adds the smallest one; we subtract it
OVERFLOWS_IN_GO = ".sub(-9223372036854775808)"
ENVIRONMENTS = [
    Features(),
    *(
        Features(consumable_capacity=a, list_type_attributes=b, stored=False)
        for a in (True, False)
        for b in (True, False)
    ),
]


@pytest.fixture(scope="module", autouse=True)
def oracle():
    try:
        return ensure("cel")
    except BuildError as error:
        if os.environ.get("REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"NOT RUN, the Go oracle is missing: {error}")


def expressions(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        expression = Expressions(draw, depth=draw.choice([1, 2, 3, 4])).selector()
        if len(expression) < 1_500 and OVERFLOWS_IN_GO not in expression:
            found.append(expression)
    return found


@pytest.mark.timeout(600)  # a first build with empty caches takes minutes
@pytest.mark.parametrize("features", ENVIRONMENTS, ids=str)
def test_same_verdict_as_kubernetes(features):
    asked = expressions(SEED, COUNT if features.stored else COUNT // 4)
    environment = {
        "new": not features.stored,
        "consumableCapacity": features.consumable_capacity,
        "listTypeAttributes": features.list_type_attributes,
    }
    answers = ask("cel", (as_question(expression, **environment) for expression in asked))
    different = [
        (expression, ours, answer["expect"], answer["message"])
        for expression, answer in zip(asked, answers, strict=True)
        # "panic": cel-go itself breaks on the expression, so there is nothing to agree with
        if answer["expect"] != "panic" and (ours := verdict(expression, features)[0]) != answer["expect"]
    ]
    assert not different, f"seed {SEED}: {different[:5]}"


def test_same_cost_as_kubernetes_where_nothing_fails():
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
