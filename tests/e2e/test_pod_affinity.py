"""Affinity and anti-affinity between pods on the real kube-scheduler: every allocation is made once, and bound."""

import pytest

from tests.e2e.lab import T4
from tests.e2e.objects import deployment, part, pod, template

HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
def lab_of_ten(lab):
    names = [f"n{number}" for number in range(10)]
    lab.machines(T4, *names)
    lab.create(template("part", part("5Gi")))
    return lab


def rule(app):
    return {REQUIRED: [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}]}


def service(name, replicas, **affinity):
    like = pod(templates=["part"])
    like["spec"]["affinity"] = affinity
    return deployment(name, replicas, like)


def refused_by_scheduler(lab):
    notes = [event["note"] for event in lab.refusals()]
    return [note for note in notes if "affinity" in note or "resourceclaim not available on the node" in note]


def test_replicas_that_keep_apart_are_placed_at_the_first_try_and_companions_follow(lab_of_ten):
    lab = lab_of_ten
    lab.create(service("web", 10, podAntiAffinity=rule("web")))
    found = lab.wait_running(10)
    assert len({each.node for each in found}) == 10
    lab.create(service("cache", 5, podAffinity=rule("web"), podAntiAffinity=rule("cache")))
    found = lab.wait_running(15)
    assert len({each.node for each in found if each.pod.startswith("cache")}) == 5
    assert (refused_by_scheduler(lab), lab.events(reason="AllocationUndone")) == ([], [])
    lab.create(service("guard", 1, podAntiAffinity=rule("web")))
    lab.api.wait_for("the guard exists", lambda: len(lab.pods()) == 16)
    (waiting,) = (item["metadata"]["name"] for item in lab.pods() if "nodeName" not in item["spec"])
    assert lab.wait_event(
        waiting, "FilteringFailed", "on this node has app=web, which the pod's anti-affinity excludes"
    )
