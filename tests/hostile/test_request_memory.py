"""What is kept of each request that differs from all others takes a few bytes for each device of the cluster, whatever its answer."""

import gc
import tracemalloc

import pytest

from controller.decide import Options, PodClaim, SchedulingRequest, decide
from hack.bench.decide import CARDS, DRIVER, furnished
from tests.cards import claim
from tests.cards import pod as gpu_pod

NODES, REQUESTS = 250, 100
DEVICES = NODES * CARDS
EACH = 10_000 + 8 * DEVICES
"""Bytes of a request: what does not depend on the cluster, and columns."""
SHARED = 1_000 * DEVICES
"""Bytes of what requests share, or the latest of them have."""
OPTIONS = Options(managed=frozenset({DRIVER}))


def request(number, *, memory="1Gi", cores="0", count=1, selector=None, **fields):
    exactly = {"deviceClassName": "bench", "count": count, "capacity": {"requests": {"memory": memory, "cores": cores}}}
    if selector is not None:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": "gpu", "exactly": exactly | fields}


WAYS = {
    "amounts that fit": lambda number: [request(number, memory=f"{1 + number}Mi")],
    "amounts that never fit": lambda number: [request(number, memory=f"{100_000 + number}Mi")],
    "amounts of many devices": lambda number: [request(number, memory=f"{1 + number}Mi", count=9)],
    "selectors": lambda number: [request(number, selector=f'device.attributes["hami.io"].index < {number}')],
    "selectors that select none": lambda number: [
        request(number, selector=f'device.attributes["hami.io"].index > {100 + number}')
    ],
    "tolerations": lambda number: [
        request(number, memory="100Gi", tolerations=[{"key": f"k{number}", "operator": "Exists"}])
    ],
    "capacities that there are not": lambda number: [
        {"name": "gpu", "exactly": {"deviceClassName": "bench", "capacity": {"requests": {f"x{number}": "1"}}}}
    ],
    "several requests": lambda number: [
        request(number, memory=f"{1 + number}Mi", count=5) | {"name": "a"},
        request(number, memory=f"{80_000 + number}Mi", count=5) | {"name": "b"},
    ],
}


def asking(number, requests):
    wanted = claim(f"c{number}", requests)
    return SchedulingRequest(gpu_pod(f"p{number}"), (PodClaim("gpu", wanted),))


@pytest.fixture(scope="module")
def inventory():
    return furnished(NODES)


@pytest.mark.parametrize("way", WAYS)
def test_requests_that_differ_in(inventory, way):
    wanted = [asking(number, WAYS[way](number)) for number in range(REQUESTS)]
    decide(inventory, wanted[0], OPTIONS)
    gc.collect()
    tracemalloc.start()
    for each in wanted:
        decide(inventory, each, OPTIONS)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < REQUESTS * EACH + SHARED
