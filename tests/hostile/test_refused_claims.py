"""Claims with as many requests and constraints as Kubernetes takes, which no node can meet: to say why costs each node once, in steps.

Every constraint was made again for every request and every node, all nodes in one piece.
"""

from collections import Counter
from contextlib import suppress

import pytest

from controller.scheduling.allocation import constraints
from controller.scheduling.decide import Options, Unschedulable, decide, idle_nodes
from controller.scheduling.inventory.selector_budget import Heartbeat, SliceSpent
from tests.support.allocation import DRIVER, claim, device, exactly
from tests.unit.scheduling.decide.test_attempts import request
from tests.unit.scheduling.decide.test_hostile import add_node, furnished

NODES, DEVICES, CLAIMS, REQUESTS, CONSTRAINTS = 40, 4, 4, 32, 32


class OneStep(Heartbeat):
    """Each report of the decision ends the turn."""

    def __init__(self):
        super().__init__(lambda: None)

    def spend(self, seconds, _owner=""):
        raise SliceSpent


@pytest.fixture
def read(monkeypatch):
    """How often each attribute of each device is read to tell nodes apart."""
    found, value_of = Counter(), constraints.value_of

    def noted(name, view, device, *, lists):
        found[name, device.id] += 1
        return value_of(name, view, device, lists=lists)

    monkeypatch.setattr(idle_nodes, "value_of", noted)
    return found


@pytest.mark.parametrize("kind", ["matchAttribute", "distinctAttribute"])
def test_each_attribute_is_read_once_for_each_device_and_one_node_in_a_step(kind, read):
    def hostile(number):
        requests = [exactly(name=f"r{each}") for each in range(REQUESTS)]
        terms = [{kind: f"{DRIVER}/a{each % 4}"} for each in range(CONSTRAINTS)]
        return claim(*requests, name=f"claim-{number}", constraints=terms)

    inventory = furnished(0)
    for number in range(NODES):
        add_node(inventory, f"node-{number}", [device(f"card-{each}", shared=True) for each in range(DEVICES)])
    asked = request(*[hostile(number) for number in range(CLAIMS)])
    answer, most = None, 0
    for _ in range(20 * NODES):
        before = read.total()
        with inventory.verdicts.within(OneStep()), suppress(SliceSpent):
            answer = decide(inventory, asked, Options())
        most = max(most, read.total() - before)
        if answer is not None:
            break
    assert isinstance(answer, Unschedulable | None)
    assert len(read) == 4 * NODES * DEVICES, "all nodes were compared"
    assert {*read.values()} == {1}
    assert most <= 4 * DEVICES
