"""hami-dra's plans for preemption are allowed, make room, and are at least as good as kube-scheduler's own.

Where a node has at most 8 pods, they are the best that there are. The cases: test_preemption_oracle.py. `make fuzz` asks about
20,000 other worlds each time.
"""

import json
from pathlib import Path

import pytest

from tests.support.preemption.judging import RULES
from tests.support.preemption.planning import accepted

HERE = Path(__file__).parent
CASES = [
    json.loads(line)
    for name in ("preempt_cases.jsonl", "preempt_special.jsonl")
    for line in (HERE / name).read_text().splitlines()
]


@pytest.mark.parametrize("budgets", RULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_plan_is_accepted(case, budgets):
    accepted(case, case["answer"], budgets)
