"""The cases of preemption are sound: answers, model, judge and both forms of a world agree.

Whether hami-dra's own plans are accepted: test_preemption.py.
"""

import json
from pathlib import Path

import pytest

from tests.support.oracles import conversation
from tests.support.preemption.judging import RULES, best_plan, greedy_plan, judge, wrong_plans
from tests.support.preemption.model import Model
from tests.support.preemption.planning import place_without_victims
from tests.support.preemption.worlds import HOST, random_world

HERE = Path(__file__).parent
RANDOM, SPECIAL = (
    [json.loads(line) for line in (HERE / f"preempt_{name}.jsonl").read_text().splitlines()]
    for name in ("cases", "special")
)
CASES = RANDOM + SPECIAL
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
NOMINATED = {"already-preempting", "already-evicting", "nomination-lost", "nominated-equal", "nominated-lower"}
"""Worlds whose nominations decide; `simulate` knows none."""


@pytest.fixture(scope="module")
def oracle():
    yield from conversation("preempt-1.37.1")


def question(case):
    return {key: value for key, value in case.items() if key != "answer"}


def without(case, gone, node):
    """The world after some pods have gone, and where the preemptor may run on this node only."""
    world = {**case, "pods": [pod for pod in case["pods"] if pod["metadata"]["name"] not in gone]}
    world["pod"] = json.loads(json.dumps(case["pod"]))
    world["pod"]["spec"]["nodeSelector"][HOST] = node
    return world


def test_the_cases_are_there():
    assert (len(RANDOM), len(SPECIAL)) == (300, 30)


def test_a_seed_still_gives_its_world():
    assert [random_world(seed) for seed in range(1, 301)] == [question(case) for case in RANDOM]


def test_kube_scheduler_still_answers_that(oracle):
    assert [oracle(question(case)) for case in CASES] == [case["answer"] for case in CASES]


@by_name
def test_the_model_does_what_kube_scheduler_does(case):
    model, answer = Model(case), case["answer"]
    assert sorted(filter(model.fits, model.nodes)) == answer["fits"]
    if answer["fits"]:
        return
    may = answer["eligible"] and not model.pod.never
    greedy = {node: found for node in model.nodes if may and (found := model.greedy(node))}
    assert greedy == {node: (each["victims"], each["violations"]) for node, each in answer["candidates"].items()}
    costs = {
        node: model.cost([model.by_name[name] for name in victims], count) for node, (victims, count) in greedy.items()
    }
    assert sorted(node for node, cost in costs.items() if cost == min(costs.values())) == answer["tied"]


@by_name
def test_the_judge_accepts_good_plans_and_no_others(case):
    answer = case["answer"]
    for budgets in RULES:
        best = judge(case, answer, best_plan(case, answer, budgets), budgets, exact=True)
        assert (best.faults, best.best) == ([], True)
        assert judge(case, answer, greedy_plan(case, answer, budgets), budgets).faults == []
    for what, plan in wrong_plans(case, answer).items():
        found = judge(case, answer, plan, "best-effort")
        assert found.faults or (what == "none" and not answer["candidates"]), what


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["name"] not in NOMINATED], ids=lambda case: case["name"]
)
def test_both_forms_of_a_world_have_the_same_room(case):
    answer = case["answer"]
    assert place_without_victims(case) in (answer["fits"] or [""])
    for node, candidate in answer["candidates"].items():
        victims = candidate["victims"]
        assert place_without_victims(without(case, victims, node)) == node
        for spared in victims:
            assert place_without_victims(without(case, set(victims) - {spared}, node)) == ""
