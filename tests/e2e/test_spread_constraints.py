"""Hard topologySpreadConstraints over 3 zones x 10 nodes: every pod of a service is right at the first try.

The node policy is binpack, which alone would put everything on one node. That nothing was tried in vain is read from the
controller's metrics and from the events: no allocation was taken back, and kube-scheduler refused none.
"""

from collections import Counter

import pytest

from tests.e2e.lab import T4
from tests.e2e.objects import deployment, legacy_pod, part, pod, policies, template

ZONE = "topology.kubernetes.io/zone"
ZONES = ("a", "b", "c")


@pytest.fixture
def zones(lab):
    """30 nodes of 4 T4 cards; the zone is the beginning of the name."""
    for zone in ZONES:
        lab.machines(T4, *(f"{zone}-{number}" for number in range(10)), labels={ZONE: zone})
    return lab


def spread(app, *, key=ZONE, skew=1, **more):
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
        **more,
    }


def service(name, replicas, like, *constraints):
    like["spec"]["topologySpreadConstraints"] = list(constraints)
    return deployment(name, replicas, like)


def scale(lab, name, replicas):
    path = f"/apis/apps/v1/namespaces/{lab.namespace}/deployments/{name}"
    lab.api.patch(path, {"spec": {"replicas": replicas}})


def per_zone(found, app=""):
    return Counter(each.node[0] for each in found if each.pod.startswith(app))


def tries(lab):
    """What was tried in vain so far, by the controller's metrics: undos of any cause, and commits that came too late."""
    status, text = lab.hami.programs["controller"].get("/metrics")
    assert status == 200
    prefixes = ("hami_dra_undos_total{", 'hami_dra_commits_total{result="stale"}')
    return sorted(line for line in text.splitlines() if line.startswith(prefixes))


def in_vain(lab):
    """Events of allocations taken back, and of pods that kube-scheduler would not have on the node of their claim.

    Not of pods that it looked at too early: it may see a gate lifted before it sees the allocation that came first.
    """
    undone = [event["note"] for event in lab.events(reason="AllocationUndone")]
    refused = [event["note"] for event in lab.events(reason="FailedScheduling")]
    return undone + [note for note in refused if "resourceclaim not available on the node" in note]


def test_a_service_over_zones_is_right_at_the_first_try(zones):
    lab = zones
    before = tries(lab)
    like = legacy_pod(gpu=1, gpumem=7500, annotations=policies("binpack", "binpack"))
    lab.create(service("web", 9, like, spread("web")))
    found = lab.wait_running(9)
    assert per_zone(found) == {"a": 3, "b": 3, "c": 3}
    assert len({each.node for each in found}) == 3  # binpack within the zone: two on one card, one on the next
    assert {lab.bound_by(each.pod) for each in found} == {"default-scheduler"}

    scale(lab, "web", 30)
    found = lab.wait_running(30)
    assert per_zone(found) == {"a": 10, "b": 10, "c": 10}
    assert len({each.node for each in found}) == 6  # eight on a node
    assert (tries(lab), in_vain(lab)) == (before, [])
    assert lab.overcommitted() == []


def test_two_constraints_and_a_service_beside_it(zones):
    """Zones and nodes at once, while another service fills the same cards and scales down and up."""
    lab = zones
    before = tries(lab)
    lab.create(template("part", part("5Gi")))
    host = spread("db", key="kubernetes.io/hostname")
    db = pod(templates=["part"], annotations=policies("binpack", "spread"))
    lab.create(service("db", 15, db, spread("db"), host))
    web = pod(templates=["part"], annotations=policies("binpack", "binpack"))
    lab.create(service("web", 12, web, spread("web", skew=2)))
    found = lab.wait_running(27)
    assert per_zone(found, "db") == {"a": 5, "b": 5, "c": 5}
    assert set(Counter(each.node for each in found if each.pod.startswith("db")).values()) == {1}
    assert skew(per_zone(found, "web")) <= 2

    scale(lab, "web", 3)
    lab.api.wait_for("twelve become three", lambda: len(lab.pods()) == 18)
    scale(lab, "web", 12)
    found = lab.wait_running(27)
    assert skew(per_zone(found, "web")) <= 2
    assert (tries(lab), in_vain(lab)) == (before, [])
    assert lab.overcommitted() == []


def skew(counts):
    return max(counts.values()) - min(counts.get(zone, 0) for zone in ZONES)


def test_a_full_zone_holds_the_service_back_and_the_event_says_so(zones):
    """No card is left in zone c: what may not go elsewhere waits, with the reason, and goes on when there is room."""
    lab = zones
    for name in (f"c-{number}" for number in range(10)):
        lab.plane.nodes.cordon(name)
    # a cordoned node still counts as an empty domain (nodeTaintsPolicy Ignore), as for kube-scheduler
    like = legacy_pod(gpu=1, gpumem=1000, annotations=policies("spread", "spread"))
    lab.create(service("web", 6, like, spread("web")))
    found = lab.wait_running(2, names=None)
    assert per_zone(found) == {"a": 1, "b": 1}
    (waiting, *_) = (item["metadata"]["name"] for item in lab.pods() if "nodeName" not in item["spec"])
    assert lab.wait_event(waiting, "FilteringFailed", "NodeTopologySpreadNotMatch")
    assert lab.wait_event(waiting, "FilteringFailed", "10 nodes NodeUnschedulable")

    lab.plane.nodes.uncordon("c-7")
    found = lab.wait_running(6)
    assert per_zone(found) == {"a": 2, "b": 2, "c": 2}
    assert lab.overcommitted() == []
