"""Selectors with the answers of Kubernetes' own CEL environment.

cel_cases.jsonl: 84 expressions with their devices; verdict and message must be the same.
cel_golden.jsonl: some 650 more over the device of tests/support/cel_expressions.py, with the cost as well, written by
hack/oracle/cel_golden.py. There the verdict must be the same; messages and costs in all but the few cases named below.
"""

import json
from pathlib import Path

import pytest

from hami_dra.cel import CompileError, DeviceInput, EvaluationError, compile_selector
from tests.support.cel_expressions import verdict

HERE = Path(__file__).parent
CASES = [json.loads(line) for line in (HERE / "cel_cases.jsonl").read_text("utf-8").splitlines()]
GOLDEN = [json.loads(line) for line in (HERE / "cel_golden.jsonl").read_text("utf-8").splitlines()]
OTHER_WORDS = 10  # mostly: cel-go lists every problem of an expression, we stop at the first
OTHER_COST = 37  # after an error inside an expression cel-go evaluates, and charges for, the other arguments


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["expression"][:80])
def test_case(case):
    device = case["device"]
    capacity = {name: capacity["value"] for name, capacity in device["capacity"].items()}
    seen = DeviceInput.of(
        case["driver"],
        device["attributes"],
        capacity,
        allow_multiple_allocations=device.get("allowMultipleAllocations"),
    )
    message = ""
    try:
        outcome = compile_selector(case["expression"]).evaluate(seen)
    except CompileError as error:
        outcome, message = "compile-error", str(error)
    except EvaluationError as error:
        outcome, message = "runtime-error", str(error)
    assert (outcome, message) == (case["expect"], case["message"])


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["expression"][:80])
def test_golden_verdict(case):
    assert verdict(case["expression"])[0] == case["expect"]


def test_golden_messages_and_costs():
    words, costs = [], []
    for case in GOLDEN:
        _, message, cost = verdict(case["expression"])
        if message != case["message"]:
            words.append((case["expression"], message, case["message"]))
        if cost != case.get("cost"):
            costs.append((case["expression"], cost, case.get("cost")))
    assert len(words) <= OTHER_WORDS, words
    assert len(costs) <= OTHER_COST, costs
    assert all(verdict(expression)[0] == "runtime-error" or "&&" in expression for expression, _, _ in costs), costs
