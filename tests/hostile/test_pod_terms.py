"""What one tenant writes into the terms and ports of its pods does not hold up the decisions about the pods of others."""

import numpy as np
import pytest

from controller.scheduling.node_filter.affinity_terms import AffinityTerm
from controller.scheduling.node_filter.node_column import NodeColumn
from controller.scheduling.node_filter.node_ports import host_ports
from hami_dra.api import names
from tests.cards import node, pod
from tests.unit.scheduling.node_filter.filtered import Filtered

HOST = "kubernetes.io/hostname"
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
MANY, NODES = 1000, 20


def about_all(key):
    return {"topologyKey": key, "labelSelector": {}, "namespaceSelector": {}}


def world():
    return Filtered(*[node(f"n{number}", labels={HOST: f"n{number}"}) for number in range(NODES)])


@pytest.fixture
def judged(monkeypatch):
    """How often a column asked about one node."""
    update, found = NodeColumn._update, []

    def counted(self, rows):
        found.extend(rows.tolist())
        update(self, rows)

    monkeypatch.setattr(NodeColumn, "_update", counted)
    return found


def evil(number, *terms, kind=REQUIRED):
    found = list(terms) if kind == REQUIRED else [{"weight": 1, "podAffinityTerm": each} for each in terms]
    affinity = {"podAntiAffinity": {kind: found}}
    return pod(f"evil-{number}", namespace="evil", affinity=affinity, nodeName=f"n{number % NODES}")


@pytest.mark.parametrize("kind", [REQUIRED, PREFERRED])
def test_topology_keys_that_no_node_has_cost_the_pods_of_others_nothing(judged, kind):
    """Each key was looked up on each node for each decision: 2,000 took 350 ms at 1,000 nodes."""
    found = world().run(*[evil(number, about_all(f"evil/{number}"), kind=kind) for number in range(MANY)])
    honest = pod("honest")
    assert found.refused(honest) == {}
    preferences = found.inventory.preferences(honest)
    if preferences is not None:
        assert not preferences.scores(np.arange(NODES)).total.any()
    assert len(judged) < 10 * NODES


def test_a_topology_key_counts_once_a_node_has_it_and_no_longer_when_none_has():
    found = world().run(evil(0, about_all("evil/0")))
    assert found.refused(pod("honest")) == {}
    before = found.inventory.nodes.node(0)
    labelled = node("n0", labels={HOST: "n0", "evil/0": "x"})
    found.inventory.node_changed(before, labelled)
    assert found.refused(pod("honest")) == {"n0": names.NODE_POD_ANTI_AFFINITY}
    found.inventory.node_changed(labelled, before)
    assert found.refused(pod("honest")) == {}


def test_labels_of_their_own_for_pods_of_one_namespace_push_out_nothing_of_the_others(monkeypatch):
    """All terms were matched again for each pod of another namespace: 7 ms at 2,000 terms."""
    found = world().run(*[evil(number, about_all(f"evil/{number}")) for number in range(10)])
    matched, matches = [], AffinityTerm.matches
    monkeypatch.setattr(AffinityTerm, "matches", lambda *given: matched.append(given[1]) or matches(*given))
    found.refused(pod("honest"))
    for number in range(300):
        found.refused(pod(f"asking-{number}", namespace="evil", labels={"evil": str(number)}))
    found.refused(pod("honest"))
    assert matched.count("default") == 10


def test_a_thousand_ports_at_addresses_of_their_own_are_read_once_for_each_pod(monkeypatch):
    """Each port read all ports of every pod that has it: 1,000 against 100 pods took a minute."""

    def asking(name, address, **more):
        ports = [{"hostPort": 1 + number, "hostIP": address} for number in range(MANY)]
        return pod(name, namespace="evil", containers=[{"name": "main", "ports": ports}], **more)

    found = world().run(
        *[asking(f"evil-{number}", f"10.0.0.{number}", nodeName=f"n{number}") for number in range(NODES)]
    )
    read = []
    monkeypatch.setattr(
        "controller.scheduling.node_filter.node_ports.host_ports", lambda each: read.append(each) or host_ports(each)
    )
    assert found.refused(asking("another", "10.0.1.1")) == {}
    assert found.refused(asking("again", "10.0.0.3")) == {"n3": names.NODE_PORTS}
    assert len(found.refused(asking("every", "0.0.0.0"))) == NODES
    assert len(read) < 10


def test_spread_over_hundreds_of_keys_that_no_node_has_counts_no_pod(monkeypatch):
    counted = []
    monkeypatch.setattr(np, "bincount", lambda *_args, **_more: counted.append(1))
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}
    keys = [HOST, *(f"evil-{number}" for number in range(500))]
    found = world()
    asked = pod("evil", topologySpreadConstraints=[{**constraint, "topologyKey": key} for key in keys])
    assert len(found.refused(asked)) == NODES
    assert not counted
