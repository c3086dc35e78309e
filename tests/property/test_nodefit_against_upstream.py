"""The node filter against kube-scheduler's own plugins, on random worlds: every node, both versions.

`make fuzz` asks about 20,000 others each time; python -m hack.oracle.nodefit_differences shows where they differ.
"""

import pytest

from tests.support import nodefit
from tests.support.examples import examples
from tests.support.failures import kept
from tests.support.nodefit_worlds import random_world
from tests.support.oracles import conversation

WORLDS = examples(500)


@pytest.fixture(scope="module", params=nodefit.VERSIONS)
def oracle(request):
    for ask in conversation(f"nodefit-{request.param}"):
        yield request.param, ask


@pytest.mark.parametrize("first", range(0, WORLDS, 100))
def test_node_filter_is_kube_schedulers(oracle, first):
    version, ask = oracle
    check = nodefit.checker(version)
    for seed in range(first, first + 100):
        world = random_world(seed)
        with kept(f"nodefit-{version}", world):
            check(world, ask)
