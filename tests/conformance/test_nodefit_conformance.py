"""The node filter gives kube-scheduler's answers on cases of its plugins' own test tables and on random worlds.

The file's answers are those of 1.37.1. `tests/property/test_nodefit_against_upstream.py` asks the oracle itself.
"""

import json
from pathlib import Path

import pytest

from tests.support import nodefit

CASES = [json.loads(line) for line in (Path(__file__).parent / "nodefit_cases.jsonl").read_text().splitlines()]


def test_the_table_is_there():
    assert len(CASES) == 370


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_node_filter_is_kube_schedulers(case):
    nodefit.compare(case, {"also": {}, **case}, "1.37.1")
