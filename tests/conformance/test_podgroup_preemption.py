"""Groups of pods preempt, and are preempted, as kube-scheduler's own integration test demands: who runs, who goes, who waits.

The cases are those of TestPodGroupPreemption (podgroup_preemption_cases.NOTICE). After two rounds nothing may change in five
more, as KAI's test runner demands. The 22 cases of composite groups are left out: hami-dra does not know such groups.
"""

import json
from pathlib import Path

import pytest

from tests.support.preemption.podgroups import played

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "podgroup_preemption_cases.jsonl").read_text().splitlines()
]


def test_the_cases_are_there():
    assert len(CASES) == 34


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_groups_preempt_as_kube_schedulers_do(case):
    after = played(case, rounds=2, still=5)
    expected = {**case["expect"], **case.get("ours", {})}
    everybody = {pod["name"] for pod in case["running"] + case["preemptors"]}
    assert after.preempted == set(expected["preempted"])
    assert after.scheduled >= set(expected["scheduled"])
    assert after.waiting >= set(expected["unschedulable"])
    assert after.scheduled | after.preempted | after.waiting == everybody
