"""Pods of many terms that share a claim: the decision about one of them ends, however many turns it takes.

What it had counted for the companions pushed itself out of the tables, so each turn began again: it never ended, and nothing else of
the namespace was decided.
"""

from collections import Counter
from contextlib import suppress

import pytest

from controller.cluster.pods import pod_groups
from controller.decide import Decision, Options, decide
from controller.decide.companions import MOST_SHAPES, grouped
from controller.inventory.selector_budget import Heartbeat, SliceSpent
from hami_dra.api.core import Pod
from tests.support.allocation import claim, device, exactly, parse
from tests.unit.decide.test_attempts import request
from tests.unit.decide.test_hostile import add_node, furnished

HOST = "kubernetes.io/hostname"
RUNNING, SLICE = 20, 50
MOST_TURNS = 500


class Slices(Heartbeat):
    """A turn ends after so many label sets."""

    def __init__(self, looked_at):
        super().__init__(lambda: None)
        self._looked_at, self._left = looked_at, SLICE

    def clock(self):
        return self._looked_at.total()

    def spend(self, seconds, _owner=""):
        self._left -= seconds
        if self._left <= 0:
            raise SliceSpent


@pytest.fixture
def looked_at(monkeypatch):
    """How many label sets were held against each count of pods, by its selectors; each is reported."""
    found, matches = Counter(), pod_groups.MatchingPods.matches

    def noted(self, namespace, labels):
        found[tuple(pod_groups.selector_key(each.labels) for each in self.selectors), labels["app"]] += 1
        return matches(self, namespace, labels)

    monkeypatch.setattr(pod_groups.MatchingPods, "matches", noted)
    monkeypatch.setattr(pod_groups, "_PORTION", 1)
    return found


def related(name, kind, terms, **spec):
    """A pod with terms, or constraints, of its own."""
    selectors = [
        {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"{name}-{n}"]}]} for n in range(terms)
    ]
    if kind == "spread":
        constraint = {"topologyKey": HOST, "maxSkew": 50, "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": each} for each in selectors]
    else:
        required = [{"topologyKey": HOST, "labelSelector": each} for each in selectors]
        spec["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    meta = {"name": name, "namespace": "ns", "uid": name, "labels": {"app": name}}
    return parse({"metadata": meta, "spec": {"containers": [{"name": "main"}], **spec}}, Pod)


@pytest.mark.parametrize("terms", [1, 12, 60])
@pytest.mark.parametrize("kind", ["podAntiAffinity", "podAffinity", "spread"])
def test_a_decision_beside_companions_of_many_terms_ends_and_counts_once(kind, terms, looked_at):
    inventory = furnished(0)
    for name in ("node-0", "node-1"):
        add_node(inventory, name, [device("card")])
    for number in range(RUNNING):
        inventory.pod_changed(None, related(f"web-{number}", kind, 0, nodeName="node-0"))
    others = [related(f"companion-{number}", kind, terms) for number in range(MOST_SHAPES)]
    asked = request(claim(exactly(), name="shared"), companions=grouped(others))
    asked = type(asked)(related("pod", kind, 0), asked.claims, companions=asked.companions)
    for _ in range(MOST_TURNS):
        with inventory.verdicts.within(Slices(looked_at)), suppress(SliceSpent):
            answer = decide(inventory, asked, Options())
            break
    assert isinstance(answer, Decision)
    assert max(looked_at.values(), default=1) == 1
