"""The page of pending pods says what the node filter says: plugin, object, figure."""

import copy
from types import SimpleNamespace

import pytest

from controller.dashboard import render
from controller.dashboard.podpages import PodPages
from controller.insight.explain import explain
from controller.insight.explain.model import Explanation
from controller.insight.simulation import SimulationSettings, question
from controller.scheduling.gangs import GangKey, GangState
from tests.support.manifests import claim, cluster, documents, part, pod


class Source:
    """One pod that waits, and the decision on it."""

    def __init__(self, found, decision, gang=None):
        self.found = found
        self.state = gang
        self.decisions = SimpleNamespace(of_pod=lambda _key: decision)

    def pods(self):
        return [self.found]

    def claim(self, _key):
        return None

    def gang(self, _pod):
        return self.state


@pytest.fixture
def asked():
    """A pod whose host port is taken."""
    port = pod("port", "c")
    port["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    web = copy.deepcopy(port)
    web["metadata"]["name"] = "web"
    web["spec"] |= {"nodeName": "n1", "resourceClaims": []}
    return question(
        documents(*cluster("n1"), claim("c", part()), web, port), "pod", "default/port", SimulationSettings()
    )


def shown(pages):
    return render.fragment("pending.html", pages.pending({}), "en")


def test_a_refused_pod(asked):
    decision = explain(asked.inventory, asked.request, asked.options)
    assert decision.why == ("on n1: NodePorts: port 8080/TCP is taken by Pod default/web",)
    text = shown(PodPages(Source(asked.pod, decision)))
    assert "no available node, 1 nodes do not meet" in text
    assert "on n1: NodePorts: port 8080/TCP is taken by Pod default/web" in text


def test_a_pod_that_no_node_may_run(asked):
    why = "VolumeBinding: PersistentVolumeClaim default/data does not exist; create it"
    decision = Explanation(asked.pod.key, asked.pod.metadata.uid, "", "error", message=why)
    assert why in shown(PodPages(Source(asked.pod, decision)))


def test_a_member_of_a_gang(asked):
    state = GangState(GangKey("labels", "default", "train"), 4, (asked.pod, asked.pod, asked.pod), 2, 0)
    text = shown(PodPages(Source(asked.pod, None, state)))
    assert "Member of gang default/train: 3 of 4 members exist, 2 run." in text
