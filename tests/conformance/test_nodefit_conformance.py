"""The node filter gives kube-scheduler's answers on cases of its plugins' own test tables and on random worlds.

Answers in nodefit_cases.jsonl are those of 1.37.1. nodefit_found.jsonl has the smallest worlds on which the node filter once
differed, each with the version that answered (hack/oracle/nodefit_differences.py adds to it).
`tests/property/test_nodefit_against_upstream.py` asks the oracle itself.
"""

import json
from pathlib import Path

import pytest

from tests.support import nodefit


def read(name):
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text().splitlines()]


CASES = read("nodefit_cases.jsonl")


def test_the_table_is_there():
    assert len(CASES) == 370


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_node_filter_is_kube_schedulers(case):
    nodefit.compare(case, {"also": {}, **case}, "1.37.1")


@pytest.mark.parametrize("case", read("nodefit_found.jsonl"), ids=lambda case: f"{case['name']}-{case['version']}")
def test_what_once_differed_agrees(case):
    nodefit.compare(case, case, case["version"])
