"""C3: lease renewal and /healthz do not share fate with the decision loop, and a loop that is stuck does not take its successor down.

Real threads and real time, with short settings.
"""

import json
import threading
import time

import pytest

from controller.cluster.pods.affinity_terms import AffinityTerm
from hami_dra.api import kinds, names
from tests.support.apart import TIMINGS, Stage
from tests.support.harness import SPACE, claim, first_fit, pod


def wait_for(what, condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
    return found


class Spinning:
    """`decide`, but pods called poison keep the thread busy in Python for `seconds`, or until `stop`."""

    def __init__(self, seconds):
        self.began = threading.Event()
        self.stop = threading.Event()
        self.times = 0
        self._seconds = seconds

    def __call__(self, inventory, request, options):
        if request.pod.metadata.name.startswith("poison"):
            self.times += 1
            self.began.set()
            end = time.monotonic() + self._seconds
            while time.monotonic() < end and not self.stop.is_set():
                pass
        return first_fit(inventory, request, options)


@pytest.fixture
def stage():
    with Stage() as one:
        yield one


def entries(stage):
    return json.loads(stage.lease().metadata.annotations.get(names.STALLED_DECISIONS, "[]"))


def test_a_long_decision_costs_neither_the_lease_nor_the_health(stage):
    spinning = Spinning(TIMINGS.duration + 2.0)
    one = stage.start(decide=spinning)
    wait_for("the first to lead", lambda: one.leads)
    two = stage.start()
    stage.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
    stage.add(kinds.POD, pod("poison", claims=["a"]))
    assert spinning.began.wait(20)
    stage.add(kinds.POD, pod("good", claims=["b"]))
    while not stage.node_of("poison"):
        assert one.get("/healthz") == (200, "ok\n")
        assert not two.leads
        assert stage.lease().spec.holder_identity
        time.sleep(0.1)
    wait_for("the other pod", lambda: stage.node_of("good"))
    assert stage.lease().spec.lease_transitions == 0
    assert not one.ended.is_set()
    assert spinning.times == 1
    # noted while it was under way, for the process might have been killed; then taken back
    wait_for("nothing noted", lambda: not entries(stage))
    _, text = one.get("/metrics")
    [stalled] = [line for line in text.splitlines() if line.startswith("hami_dra_loop_stalled_seconds_total ")]
    assert float(stalled.split()[1]) > 1


def test_a_stuck_leader_makes_way_and_its_successor_holds_that_pod_back(stage, caplog):
    spinning = Spinning(120.0)
    one = stage.start(decide=spinning, stall_limit=2.0)
    wait_for("the first to lead", lambda: one.leads)
    two = stage.start(decide=spinning, stall_limit=2.0)
    stage.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"), claim("c"))
    stage.add(kinds.POD, pod("poison", claims=["a"]))
    assert spinning.began.wait(20)
    stage.add(kinds.POD, pod("good", claims=["b"]))

    assert one.ended.wait(30)
    assert one.exit_code == 70
    spinning.stop.set()  # in place of the end of the process
    wait_for("the other pod", lambda: stage.node_of("good"))
    assert two.leads
    assert not stage.node_of("poison")
    assert spinning.times == 1
    [entry] = entries(stage)
    assert (entry["namespace"], entry["name"], entry["count"]) == (SPACE, "poison", 1)
    [event] = wait_for("the event", lambda: stage.events("DecisionStalled"))
    assert event["type"] == "Warning"
    assert event["regarding"]["name"] == "poison"
    assert "it is tried again at" in event["note"]
    assert two.get("/healthz") == (200, "ok\n")
    [words] = [record.getMessage() for record in caplog.records if "the main loop was held up" in record.getMessage()]
    assert "deciding on pod default/poison" in words
    assert "in __call__" in words, "the stack of the main thread"

    # a pod of that name with other claims is another one
    stage.do("delete", kinds.POD, "poison", namespace=SPACE)
    wait_for("the note to be forgotten", lambda: not entries(stage))
    stage.add(kinds.POD, pod("poison", claims=["c"]))
    wait_for("the new pod", lambda: stage.node_of("poison"))


def test_who_has_the_terms_that_stall_is_held_back_and_not_the_pod_decided_on(stage, monkeypatch):
    """Honest pods were held back, one after the other, for the anti-affinity of a running pod of somebody else."""
    matches, stop, reading = AffinityTerm.matches, threading.Event(), []

    def stalling(term, namespace, *labels):
        if term.topology_key == "stalling":
            reading.append(namespace)
            while not stop.is_set():
                pass
        return matches(term, namespace, *labels)

    one = stage.start(stall_limit=2.0)
    wait_for("the first to lead", lambda: one.leads)
    two = stage.start(stall_limit=2.0)
    evil = pod("evil", nodeName="n0")
    evil["metadata"]["namespace"] = "evil"
    term = {"topologyKey": "stalling", "labelSelector": {}, "namespaceSelector": {}}
    evil["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    stage.add(kinds.NAMESPACE, {"metadata": {"name": "evil"}})
    stage.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b"))
    stage.add(kinds.POD, evil)
    monkeypatch.setattr(AffinityTerm, "matches", stalling)
    stage.add(kinds.POD, pod("honest", claims=["a"]))
    assert one.ended.wait(40)
    assert reading == [SPACE]
    stop.set()
    wait_for("the honest pod", lambda: stage.node_of("honest"))
    assert two.leads
    [entry] = entries(stage)
    assert (entry["namespace"], entry["name"], entry["count"]) == ("evil", "evil", 1)
    stage.add(kinds.POD, pod("next", claims=["b"]))
    wait_for("the next one", lambda: stage.node_of("next"))
    assert reading == [SPACE], "the successor leaves the term for later"
    assert not stage.events("DecisionStalled")
    stage.do("delete", kinds.POD, "evil", namespace="evil")
    wait_for("the note to be forgotten", lambda: not entries(stage))


def test_healthz_tells_of_a_stuck_loop_and_names_the_pod(stage):
    spinning = Spinning(60.0)
    one = stage.start(decide=spinning, stall_limit=1.0, leader_election=False)
    wait_for("it to lead", lambda: one.leads)
    assert wait_for("readiness", lambda: one.get("/readyz")[0] == 200)
    stage.add(kinds.RESOURCE_CLAIM, claim("a"))
    stage.add(kinds.POD, pod("poison", claims=["a"]))
    assert spinning.began.wait(20)
    wait_for("the health to fail", lambda: one.get("/healthz")[0] == 503)
    for path in ("/healthz", "/readyz"):
        _, text = one.get(path)
        assert "deciding on pod default/poison" in text
    assert not one.ended.is_set(), "there is nobody to hand over to"
    spinning.stop.set()
    wait_for("the health to come back", lambda: one.get("/healthz") == (200, "ok\n"))
    assert stage.node_of("poison") or wait_for("the pod", lambda: stage.node_of("poison"))


def test_the_lease_is_given_back_last_when_a_controller_is_asked_to_end(stage):
    one = stage.start()
    wait_for("it to lead", lambda: one.leads)
    one.stop()
    assert stage.lease().spec.holder_identity in ("", None)
    stage.replicas.remove(one)
