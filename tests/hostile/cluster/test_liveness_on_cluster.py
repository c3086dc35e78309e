"""C3: two replicas under the shipped account, one pod whose decision never ends: the leader answers, makes way, and the next one goes on."""

import json
import os
import sys
from pathlib import Path

import pytest

from hack.installation import QUICK
from tests.e2e.lab import T4
from tests.e2e.objects import claim, part, pod

LEASE = "/apis/coordination.k8s.io/v1/namespaces/hami-dra-system/leases/hami-dra-controller"
SPINNING = (sys.executable, str(Path(__file__).with_name("spinning_controller.py")))
STALL_LIMIT = 15.0
"""Longer than the lease lasts (9 s): who keeps it that long has renewed it."""


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation()
    installation.start_webhook()
    for name in ("controller", "controller-2"):
        installation.start_controller(*QUICK, f"--stall-limit={STALL_LIMIT:g}s", name=name, program=SPINNING)
    installation.wait_ready()
    return installation


def exit_code(process):
    """None while it runs."""
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return ended.si_status if ended is not None else None


def test_a_decision_that_never_ends_stops_one_leader_and_no_other(lab, hami):
    lab.machines(T4, "n0", "n1")
    lab.create(claim("a", part()), claim("b", part()), claim("c", part()))
    stuck = hami.wait_for("a leader", hami.leader)
    (other,) = [each for each in hami.controllers() if each is not stuck]
    holder = lab.api.get(LEASE)["spec"]["holderIdentity"]

    lab.create(pod("poison", claims=["a"]))
    lab.create(pod("good", claims=["b"]))
    answers = []

    def has_ended():
        lease = lab.api.get(LEASE)["spec"]
        if exit_code(stuck.process) is None and lease["holderIdentity"] == holder:
            answers.append(stuck.get("/healthz"))
        return exit_code(stuck.process) is not None

    lab.api.wait_for("the leader to end itself", has_ended, seconds=120, every=0.5)
    assert exit_code(stuck.process) == 70
    # it was asked all the time, and led for longer than a lease lasts without renewal; the last answer may have met its end
    assert len(answers) >= 10
    assert set(answers[:-1]) == {(200, "ok\n")}
    log = stuck.process.tail(80)
    assert f"deciding on pod {lab.namespace}/poison" in log
    assert "in spin_or_decide" in log

    lab.api.wait_for("the other pod", lambda: lab.pod("good")["status"].get("phase") == "Running")
    assert other.metric("hami_dra_leader") == 1
    stuck.process.start()  # as kubelet does
    lab.api.wait_for("the replica to be back", lambda: stuck.get("/readyz")[0] == 200)

    assert "AllocationUndone" not in {event["reason"] for event in lab.events()}
    note = lab.wait_event("poison", "DecisionStalled")
    assert "it is tried again at" in note
    (entry,) = json.loads(lab.api.get(LEASE)["metadata"]["annotations"]["hami.io/stalled-decisions"])
    assert (entry["namespace"], entry["name"], entry["count"]) == (lab.namespace, "poison", 1)
    assert other.metric("hami_dra_held_back_pods") == 1
    assert "allocation" not in lab.claim("a").get("status", {})

    lab.create(pod("later", claims=["c"]))
    lab.wait_running(names=["good", "later"])
    assert other.metric("hami_dra_leader") == 1
    assert other.get("/healthz") == (200, "ok\n")
    lab.delete_pod("poison", gracePeriodSeconds=0)

    def is_forgotten():
        return "hami.io/stalled-decisions" not in lab.api.get(LEASE)["metadata"].get("annotations", {})

    lab.api.wait_for("the note to be forgotten", is_forgotten)


def test_a_leader_that_dies_in_a_long_decision_has_left_word_before(lab, hami):
    """As when it runs out of memory, or kubelet kills it."""
    lab.machines(T4, "n0")
    lab.create(claim("a", part()), claim("b", part()))
    leader = hami.wait_for("a leader", hami.leader)
    lab.create(pod("poison", claims=["a"]))

    def noted():
        return json.loads(lab.api.get(LEASE)["metadata"].get("annotations", {}).get("hami.io/stalled-decisions", "[]"))

    (entry,) = lab.api.wait_for("the note", noted)
    leader.process.kill()
    lab.create(pod("good", claims=["b"]))
    lab.wait_running(names=["good"])
    lab.wait_event("poison", "DecisionStalled")
    assert noted() == [entry]
    leader.process.start()
    lab.delete_pod("poison", gracePeriodSeconds=0)
    lab.api.wait_for("the note to be forgotten", lambda: not noted())


def test_a_controller_that_is_asked_to_end_gives_its_lease_back_and_ends_well(lab, hami):
    leader = hami.wait_for("a leader", hami.leader)
    holder = lab.api.get(LEASE)["spec"]["holderIdentity"]
    leader.process.ask_to_stop()
    lab.api.wait_for("its end", lambda: exit_code(leader.process) is not None, seconds=30)
    assert exit_code(leader.process) == 0
    assert "Traceback" not in leader.process.tail(30)
    assert "was destroyed but it is pending" not in leader.process.tail(30)
    lab.api.wait_for("another leader", lambda: lab.api.get(LEASE)["spec"]["holderIdentity"] not in ("", holder))
    leader.process.start()
    lab.api.wait_for("the replica to be back", lambda: leader.get("/readyz")[0] == 200)
