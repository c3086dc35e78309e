"""Random claims on random slices against Kubernetes' own allocator: hack/oracle/allocator. `make fuzz` asks far more.

Every feature of the allocator, first fit, every scoring policy, with and without rules of vendors, and the next pod after
it: see tests/support/upstream.py, which also names the known differences.
"""

from collections import Counter

import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.failures import kept
from tests.support.oracles import conversation
from tests.support.random_clusters import random_clusters
from tests.support.upstream import Comparison

SEEN: Counter[str] = Counter()


@pytest.fixture(scope="module")
def asking():
    yield from conversation("allocator")


@pytest.mark.timeout(600)  # a first build with empty caches takes minutes
@settings(max_examples=examples(500))
@given(cluster=random_clusters())
def test_same_as_kubernetes(asking, cluster):
    with kept("allocator", cluster):
        SEEN.update(Comparison(cluster, asking).run())


def test_the_worlds_are_worth_asking():
    """Errors, refusals and solutions all come up often enough to mean something."""
    if not SEEN:
        pytest.skip("the test above has not run")
    for verdict in (
        "first fit: same error",
        "first fit: same none",
        "first fit: same solution",
        "policy: accepted",
        "the next pod: same solution",
    ):
        assert SEEN[verdict] >= 20, SEEN
    gave_up = sum(count for verdict, count in SEEN.items() if verdict.endswith("gave up"))
    assert gave_up < SEEN["first fit: same solution"] / 5, SEEN
