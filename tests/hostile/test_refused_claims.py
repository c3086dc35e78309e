"""Claims with as many requests and constraints as Kubernetes takes, which no node can meet: to say why reads each attribute of
each device once, and no more attributes than the limit.

Every constraint was made again for every request and every node.
"""

from collections import Counter

import pytest

from controller.allocation import constraints
from controller.decide import Options, Unschedulable, decide, set_reasons
from tests.support.allocation import DRIVER, claim, device, exactly
from tests.unit.decide.test_attempts import request
from tests.unit.decide.test_hostile import add_node, furnished

NODES, DEVICES, CLAIMS, REQUESTS, CONSTRAINTS = 40, 4, 4, 32, 32


@pytest.fixture
def read(monkeypatch):
    """How often each attribute of each device is read to say why a pod is refused."""
    found, value_of = Counter(), constraints.value_of

    def noted(name, view, device, *, lists):
        found[name, device.id] += 1
        return value_of(name, view, device, lists=lists)

    monkeypatch.setattr(set_reasons, "value_of", noted)
    return found


def refused(kind, attributes, having=0):
    """The answer to claims whose constraints name that many attributes. `having`: how many of them the devices have."""

    def hostile(number):
        requests = [exactly(name=f"r{each}") for each in range(REQUESTS)]
        terms = [{kind: f"{DRIVER}/a{each % attributes}"} for each in range(CONSTRAINTS)]
        return claim(*requests, name=f"claim-{number}", constraints=terms)

    inventory = furnished(0)
    rack = {f"{DRIVER}/a{each}": each for each in range(having)}
    for number in range(NODES):
        cards = [device(f"card-{each}", shared=True, **rack) for each in range(DEVICES)]
        add_node(inventory, f"node-{number}", cards)
    return decide(inventory, request(*[hostile(number) for number in range(CLAIMS)]), Options())


@pytest.mark.parametrize("kind", ["matchAttribute", "distinctAttribute"])
def test_each_attribute_is_read_once_for_each_device(kind, read):
    answer = refused(kind, 4)
    assert isinstance(answer, Unschedulable)
    assert {*read.values()} == {1}
    assert len(read) <= 4 * NODES * DEVICES


def test_attributes_beyond_the_limit_are_not_read(read, monkeypatch):
    monkeypatch.setattr(set_reasons, "_READ", 2 * NODES * DEVICES)
    answer = refused("matchAttribute", CONSTRAINTS, having=CONSTRAINTS - 1)
    assert isinstance(answer, Unschedulable)
    assert read.total() == 2 * NODES * DEVICES
