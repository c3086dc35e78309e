"""The page of pending pods says what the node filter says: plugin, object, figure."""

import asyncio
import copy
import re
from types import SimpleNamespace

import msgspec
import pytest

from controller.dashboard import render
from controller.dashboard.pages import DecisionTable
from controller.dashboard.pending import (
    PendingPod,
    PendingTable,
    grouped,
    largest_first,
    pending_count,
    pending_pods,
    pods_by_kind,
)
from controller.dashboard.source import ControllerState
from controller.gangs import GangKey, GangState
from controller.insight.explain import explain
from controller.insight.simulation import SimulationSettings, question
from controller.inventory import Inventory
from controller.reasons import Reason
from controller.reconcile.runtime import Mode, SchedulingSettings
from controller.views.explanation import Explanation, GangDomain, GangExplanation, GangMember
from hami_dra.api.core import ResourceRequirements, SchedulingGate
from hami_dra.api.meta import Condition
from tests.support.manifests import claim, cluster, documents, part, pod


class Source:
    """Pods that wait, and the decision on them."""

    scheduling = SchedulingSettings()
    state = ControllerState("1.0", Mode.EXCLUSIVE, True, "holds")

    namespaces = None

    def __init__(self, found, decision=None, gang=None, bypassed=""):
        self.found = found if isinstance(found, list) else [found]
        self.gang_state = gang
        self.bypassed = bypassed
        self.inventory = Inventory()
        self.decisions = SimpleNamespace(of_pod=lambda _key, brief: decision)

    def pods(self):
        return self.found

    pending_pods = pods

    def pods_of(self, _key):
        return []

    def held_for(self, _key):
        return None

    def unconverted(self, pod):
        return "" if pod.spec.resource_claims else self.bypassed

    def is_legacy(self, pod):
        return "nvidia.com/gpu" in pod.spec.containers[0].resources.limits

    def claim(self, _key):
        return None

    def gang_key(self, _pod):
        return self.gang_state and self.gang_state.key

    def gang(self, _key):
        return self.gang_state


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


def pending(source):
    return asyncio.run(pending_pods(source))


def shown(pages):
    return render.fragment("pending.html", asyncio.run(pages.context({})), "en")


def test_a_refused_pod(asked):
    decision = explain(asked.inventory, asked.request, asked.options)
    assert decision.why == ()
    text = shown(PendingTable(Source(asked.pod, decision)))
    assert "no node fits now: on n1: NodePorts: port 8080/TCP is taken by Pod default/web" in text


@pytest.mark.parametrize(
    ("kind", "never", "fix", "advice"),
    [
        ("memory", True, "", "Ask for less, or add nodes that have what it asks for."),
        ("devices", False, "", "It is placed as soon as enough is free"),
        ("label", True, "Label a node, or change nodeSelector", ""),
        ("node", False, "", ""),
    ],
)
def test_what_to_do_about_an_amount_that_is_not_there(asked, kind, never, fix, advice):
    reason = Reason(kind, "needs 4", never=never, fix=fix)
    decision = Explanation(asked.pod.key, "", "", "refused", message="no node fits", reason=reason)
    text = shown(PendingTable(Source(asked.pod, decision)))
    assert advice in text
    assert ("Ask for less" in text or "It is placed" in text) == bool(advice)


def test_the_reasons_of_most_pods_come_first_and_kinds_are_counted():
    pods = [PendingPod(f"ns/p{number}", f"2026-01-0{number + 1}", cause, message) for number, (cause, message) in enumerate(
        [("never", "a"), ("refused", "b"), ("refused", "b"), ("bypassed", "c"), ("gate", "d")]
    )]  # fmt: skip
    groups = grouped(pods)
    assert [len(group.pods) for group in largest_first(groups)] == [2, 1, 1, 1]
    assert pods_by_kind(groups) == {"invalid": 1, "never": 1, "refused": 2, "waiting": 1}


def test_a_pod_that_no_node_may_run(asked):
    why = "VolumeBinding: PersistentVolumeClaim default/data does not exist; create it"
    decision = Explanation(asked.pod.key, asked.pod.metadata.uid, "", "error", message=why)
    assert why in shown(PendingTable(Source(asked.pod, decision)))


def test_a_member_of_a_gang(asked):
    state = GangState(GangKey("labels", "default", "train"), 4, (asked.pod, asked.pod, asked.pod), 2, 0)
    text = shown(PendingTable(Source(asked.pod, None, state)))
    assert "gang default/train" in text
    assert "3 of 4 members exist, 2 run." in text


def test_pods_with_the_same_reason_are_one_entry(asked):
    pods = [renamed(asked.pod, f"port-{number}") for number in range(20)]
    decision = Explanation(asked.pod.key, "", "", "refused", message="no node fits: 2 of 4 devices", reasons={"X": 4})
    (group,) = grouped(pending(Source(pods, decision)))
    assert (len(group.pods), group.oldest.key) == (20, "default/port-0")
    text = shown(PendingTable(Source(pods, decision)))
    assert text.count("no node fits: 2 of 4 devices") == 2, "in the row and below it"
    assert all(f"default/port-{number}" in text for number in range(20))
    apart = pending(Source(pods[:1], decision)) + pending(Source(pods[1:2]))
    assert len(grouped(apart)) == 2


def test_kube_scheduler_has_the_last_word_on_a_pod_that_is_allocated(asked):
    why = "0/2 nodes are available: 2 pod has unbound immediate PersistentVolumeClaims."
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=why)
    pod = msgspec.structs.replace(asked.pod, status=msgspec.structs.replace(asked.pod.status, conditions=(condition,)))
    placed = Explanation(pod.key, pod.metadata.uid, "", "placed", "n1", message="n1 is the best of 2 nodes that fit")
    text = shown(PendingTable(Source(pod, placed)))
    assert why in text
    assert "Devices on n1 are allocated; the pod is not bound yet." in text
    assert "the best of 2" not in text


def test_pods_that_are_not_hami_dras_say_so(asked):
    spec = asked.pod.spec
    other = msgspec.structs.replace(asked.pod, spec=msgspec.structs.replace(spec, scheduler_name="hami-scheduler"))
    placed = Explanation(other.key, other.metadata.uid, "", "placed", "n1")
    assert [(each.cause, each.node) for each in pending(Source(other, placed))] == [("scheduler", "")]
    assert "spec.schedulerName is hami-scheduler" in shown(PendingTable(Source(other)))

    plain = msgspec.structs.replace(spec, resource_claims=())
    bare = msgspec.structs.replace(asked.pod, spec=plain)
    assert pending(Source(bare)) == []
    assert "did not pass the webhook" in shown(PendingTable(Source(bare, bypassed="did not pass the webhook")))

    gate = (SchedulingGate(name="kueue.x-k8s.io/admission"),)
    limits = ResourceRequirements(limits={"nvidia.com/gpu": "1"})
    container = msgspec.structs.replace(spec.containers[0], resources=limits)
    gated = msgspec.structs.replace(plain, scheduling_gates=gate, containers=(container,))
    pod = msgspec.structs.replace(asked.pod, spec=gated)
    assert [(each.cause, each.message) for each in pending(Source(pod))] == [("gate", gate[0].name)]
    assert pending_count(Source(pod)) == (1, "")


def renamed(pod, name):
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=name, uid=name))


def test_the_decision_on_a_member_shows_its_gang(asked):
    decision = explain(asked.inventory, asked.request, asked.options)
    members = (GangMember("default/port", "n1"), GangMember("default/m1", "n2"), GangMember("default/m0", runs=True))
    domains = (GangDomain("rack=a", 2, 3, 0, chosen=True), GangDomain("rack=b", 1, 1, -2, problem="2 too few"))
    gang = GangExplanation("PodGroup team/train", 2, members, fits=True, domains=domains)
    source = Source(asked.pod)
    source.decisions.of_pod = lambda _key: msgspec.structs.replace(decision, gang=gang)
    source.decisions.latest = lambda _most: [msgspec.structs.replace(decision, gang=gang)]
    source.pod = lambda _key: None
    pages = DecisionTable(source)
    text = render.fragment("decision.html", pages.decision({"pod": "default/port"}), "en")
    assert "Gang PodGroup team/train" in text
    assert "2 of 3 members must run at once" in text
    assert re.search(r"pod=default%2Fm1|pod=default/m1", text)
    assert "m0</a>" not in text  # it runs: its decision may be forgotten
    assert "2 too few" in text
    source.state = SimpleNamespace(is_leader=True)
    assert "gang train</span>" in render.fragment("decisions.html", asyncio.run(pages.context({})), "en")
