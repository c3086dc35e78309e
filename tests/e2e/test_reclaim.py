"""Reclaim by guarantee and scale-in on a real control plane: a team gets what it is owed, once, and keeps it.

What may go wrong meanwhile is played in virtual time (tests/unit/reconcile/preemption/test_reclaim_life.py).
"""

import time

import pytest

from hack.installation import QUICK
from hami_dra.api import names
from tests.e2e.lab import EVENTS, T4
from tests.e2e.objects import deployment, pod, policies, priority_class, request, template
from tests.support.quotas import guarantee

ON = (*QUICK, "--preemption=devices", "--save-after=0s", "--deletion-cost=on")
QUIET = 8
"""Seconds in which nothing more happens."""


@pytest.fixture(scope="module")
def hami(make_installation):
    installation = make_installation(preemption="respect")
    installation.start_controller(*ON)
    installation.wait_ready()
    return installation


@pytest.fixture
def rich(lab):
    """A namespace whose Deployment has all four cards of the only node, with pods of high priority."""
    lab.machines(T4, "n0")
    space = f"{lab.namespace}-rich"
    lab.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    lab.create(priority_class("high", 1000), template("card", request(count=1)))
    lab.create(in_space(space, template("card", request(count=1))))
    like = pod(templates=["card"], priorityClassName="high", annotations={names.MIN_RUNTIME: "1s"})
    lab.create(in_space(space, deployment("service", 4, like)))
    lab.api.wait_for("the rich to run", lambda: len(running(lab, space)) == 4, seconds=60)
    time.sleep(1)  # as long as they run at least
    yield space
    lab.api.delete(f"/apis/apps/v1/namespaces/{space}/deployments")
    lab.api.delete(f"/api/v1/namespaces/{space}/pods")
    lab.api.wait_for("the pods of the rich to go", lambda: not pods(lab, space), seconds=60)


def in_space(space, item):
    item["metadata"]["namespace"] = space
    return item


def pods(lab, space):
    return lab.api.list(f"/api/v1/namespaces/{space}/pods")


def running(lab, space):
    return [
        each["metadata"]["name"]
        for each in pods(lab, space)
        if each["status"].get("phase") == "Running" and "deletionTimestamp" not in each["metadata"]
    ]


def preempted(lab, space):
    return [each for each in lab.api.list(EVENTS.format(space)) if each["reason"] == "Preempted"]


@pytest.mark.on_1_36
def test_a_team_gets_what_it_is_owed_and_nothing_flaps(lab, rich):
    """The Deployment makes its replicas again, with a higher priority than those that took their places."""
    lab.create(guarantee({"nvidia.com/gpu": 2}, namespace=lab.namespace))
    lab.create(guarantee({"nvidia.com/gpu": 1}, namespace=rich))
    lab.create(*(pod(f"poor-{number}", templates=["card"]) for number in range(3)))
    lab.api.wait_for("two of the poor to run", lambda: len(running(lab, lab.namespace)) == 2, seconds=60)
    lab.api.wait_for("events of two evictions", lambda: len(preempted(lab, rich)) == 2)
    time.sleep(QUIET)
    assert (len(running(lab, lab.namespace)), len(running(lab, rich))) == (2, 2)
    notes = [each["note"] for each in preempted(lab, rich)]
    assert len(notes) == 2
    text = f"its namespace {rich} has more than its guarantee: it has 4 of limits.nvidia.com/gpu and is owed 1"
    assert any(text in note for note in notes)
    assert preempted(lab, lab.namespace) == []
    said = sorted(each["note"] for each in lab.events(reason="Preempting"))
    assert "to take back what its namespace is owed: it has 0 of limits.nvidia.com/gpu and is owed 2" in said[0]
    assert "it has 1 of limits.nvidia.com/gpu and is owed 2" in said[1]
    assert all(rich not in note for note in said)
    assert lab.overcommitted() == []


def test_priority_leaves_a_team_its_guarantee_and_not_one_device_more(lab, rich):
    lab.create(guarantee({"nvidia.com/gpu": 3}, namespace=rich), priority_class("highest", 5000))
    lab.create(*(pod(f"urgent-{number}", templates=["card"], priorityClassName="highest") for number in range(2)))
    lab.api.wait_for("one of the urgent to run", lambda: len(running(lab, lab.namespace)) == 1, seconds=60)
    time.sleep(QUIET)
    assert (len(running(lab, lab.namespace)), len(running(lab, rich))) == (1, 3)
    assert len(preempted(lab, rich)) == 1


def test_control_without_the_label_the_same_quota_is_a_limit_and_takes_nothing_back(lab, rich):
    quota = guarantee({"nvidia.com/gpu": 2}, namespace=lab.namespace)
    del quota["metadata"]["labels"]
    lab.create(quota, pod("poor", templates=["card"]))
    lab.wait_event("poor", "FilteringFailed")
    time.sleep(QUIET)
    assert (running(lab, lab.namespace), len(running(lab, rich))) == ([], 4)


def test_a_scale_in_frees_whole_cards(lab):
    """Two pods share a card; the youngest, which would go first, shares one with a pod that stays."""
    lab.machines(T4, "n0")
    lab.create(template("half", request(memory="6Gi", cores="0")))
    packed = policies("binpack", "binpack")
    lab.create(deployment("web", 2, pod("web", templates=["half"], annotations=packed)))
    lab.wait_running(2)
    (first,) = {each.devices[0] for each in lab.placements()}
    lab.create(pod("other", templates=["half"], annotations=packed))
    lab.wait_running(3)
    scale(lab, 3)
    lab.wait_running(4)
    assert sorted(each.devices[0] for each in lab.placements()).count(first) == 2

    def costs():
        annotations = [each["metadata"].get("annotations", {}) for each in pods(lab, lab.namespace)]
        return sorted(int(each[names.POD_DELETION_COST]) for each in annotations if names.POD_DELETION_COST in each)

    # the first two may have theirs from before the other pod came: they change after five minutes
    lab.api.wait_for("the costs", lambda: [each > 1_000_000 for each in costs()] == [False, False, True], seconds=30)
    scale(lab, 1)
    lab.api.wait_for("two pods to go", lambda: len(lab.placements()) == 2)
    assert first not in {each.devices[0] for each in lab.placements()}


def scale(lab, replicas):
    lab.api.patch(f"/apis/apps/v1/namespaces/{lab.namespace}/deployments/web", {"spec": {"replicas": replicas}})
