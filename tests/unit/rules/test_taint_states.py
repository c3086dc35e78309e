"""Taints are read once for all nodes that have the same, and verdicts follow every change of a node."""

import random

import pytest

from controller.cluster.nodes.nodes import NodeColumns
from controller.rules import taint_states
from controller.rules.taint_states import TaintStates, TaintVerdicts
from controller.rules.taint_toleration import taint_number
from hami_dra.api.core import Toleration
from tests.cards import node

TOLERATIONS = (Toleration(key="a", operator="Exists"), Toleration(key="b", operator="Equal", value="1"))
ABSENT = 99


def drawn(draw, name):
    taints = [
        {
            "key": draw.choice("abc"),
            "value": draw.choice("12"),
            "effect": draw.choice(["NoSchedule", "PreferNoSchedule"]),
        }
        for _ in range(draw.randrange(4))
    ]
    ready = draw.choice(["True", "True", "False", "Unknown"])
    return node(name, taints=taints, unschedulable=draw.random() < 0.2, ready=ready)


@pytest.mark.parametrize("most", [3, 4096])
@pytest.mark.parametrize("seed", range(5))
def test_verdicts_are_those_of_each_node(monkeypatch, seed, most):
    monkeypatch.setattr(taint_states, "_MOST", most)
    draw, there = random.Random(seed), {}
    nodes = NodeColumns()
    states = TaintStates(nodes)
    verdicts = TaintVerdicts(states, lambda each: taint_number(TOLERATIONS, each), ABSENT)
    for _ in range(200):
        name = f"n{draw.randrange(8)}"
        new = drawn(draw, name) if draw.random() < 0.8 else None
        if new is None and name not in there:
            continue
        nodes.remove(name) if new is None else nodes.put(new)
        there = {key: each for key, each in (there | {name: new}).items() if each is not None}
        if draw.random() < 0.7:
            found = verdicts.current()
            wanted = [ABSENT if each is None else taint_number(TOLERATIONS, each) for each in nodes.nodes[: nodes.size]]
            assert found.tolist() == wanted


def test_one_node_of_each_kind_is_read():
    nodes, read = NodeColumns(), []
    for number in range(100):
        taints = [
            {
                "key": "pool",
                "value": str(number % 4),
                "effect": "NoSchedule",
                "timeAdded": f"2026-01-01T00:00:{number % 60:02}Z",
            }
        ]
        nodes.put(node(f"n{number}", taints=taints))
    states = TaintStates(nodes)
    for _ in range(2):
        TaintVerdicts(states, lambda each: read.append(each) or 0).current()
    assert len(read) == 8


def test_nodes_that_each_have_their_own_taint_are_not_all_read_again_with_each_change(monkeypatch):
    monkeypatch.setattr(taint_states, "_MOST", 4)
    nodes, read = NodeColumns(), []
    states = TaintStates(nodes)
    verdicts = TaintVerdicts(states, lambda each: read.append(each.metadata.name) or 0)
    for number in range(20):
        nodes.put(node(f"n{number}", taints=[{"key": "own", "value": str(number), "effect": "NoSchedule"}]))
    verdicts.current()
    assert len(read) == 20
    nodes.put(node("n3", taints=[{"key": "own", "value": "new", "effect": "NoSchedule"}]))
    verdicts.current()
    assert read[20:] == ["n3"]
    for number in range(100):  # states that are gone are dropped all the same
        nodes.put(node("n3", taints=[{"key": "own", "value": f"new-{number}", "effect": "NoSchedule"}]))
        verdicts.current()
    assert len(states.samples) <= 2 * 20 + 1
