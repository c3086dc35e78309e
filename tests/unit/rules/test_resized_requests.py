"""Pods that kubelet resizes in place: what they count on their node."""

import msgspec
import pytest

from controller.cluster.pods.resized_requests import counted_requests
from controller.reasons import catalogue
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.kube.decoding import read_object
from tests.cards import node, pod
from tests.unit.rules.filtered import Filtered

INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]


def cpu(amount):
    return {"cpu": amount} if amount else None


def resized(*containers, conditions=(), **status):
    """A bound pod; containers: (wanted, allocated, in force)."""
    spec = [
        {"name": f"c{n}", "resources": {"requests": cpu(wanted) or {}}} for n, (wanted, _, _) in enumerate(containers)
    ]
    statuses = [
        {"name": f"c{n}", "allocatedResources": cpu(allocated), "resources": {"requests": cpu(in_force)}}
        for n, (_, allocated, in_force) in enumerate(containers)
    ]
    raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "resized", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": "n1", "containers": spec},
        "status": {"containerStatuses": statuses, "conditions": list(conditions), **status},
    }
    found, problem = read_object(POD, msgspec.json.encode(raw))
    assert not problem
    return found


@pytest.mark.parametrize(
    ("containers", "conditions", "by_sums", "by_container"),
    [
        ([("500m", "1500m", "500m")], [], 1500, 1500),
        ([("500m", "500m", "1500m")], [], 1500, 1500),
        ([("2", "500m", "500m")], [], 2000, 2000),
        ([("2", "500m", "500m")], INFEASIBLE, 500, 500),
        ([("1", "2", "2"), ("2", "1", "1")], [], 3000, 4000),
        ([("1", None, None)], [], 1000, 1000),
        ([("1", None, None)], INFEASIBLE, 0, 0),
    ],
    ids=str,
)
def test_the_largest_counts(containers, conditions, by_sums, by_container):
    found = resized(*containers, conditions=conditions)
    assert counted_requests(found, by_sums=True)["cpu"] == by_sums
    assert counted_requests(found, by_sums=False)["cpu"] == by_container


def test_a_node_is_as_full_as_kubelet_says():
    world = Filtered(node("n1", allocatable={"cpu": "2", "pods": "9"})).run(resized(("500m", "1500m", "1500m")))
    wanted = pod("wanting", containers=[{"name": "main", "resources": {"requests": {"cpu": "1"}}}])
    assert world.refused(wanted) == {"n1": catalogue.NODE_RESOURCES}
    assert world.why(wanted) == {"n1": "NodeResourcesFit: asks 1 of cpu, 0.5 of 2 are free"}
    before = resized(("500m", "1500m", "1500m"))
    world.inventory.pod_changed(before, resized(("500m", "500m", "500m")))
    assert world.refused(wanted) == {}


def test_pod_level_requests_are_resized_too():
    found = resized((None, None, None), resources={"requests": {"cpu": "3"}}, allocatedResources={"cpu": "2"})
    level = msgspec.convert({"requests": {"cpu": "1"}}, type(pod("x").spec.containers[0].resources))
    found = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, resources=level))
    assert counted_requests(found, by_sums=True)["cpu"] == 3000


def test_what_kubelet_repeats_of_the_spec_takes_no_memory():
    assert resized(("1", "1", "1")).status.container_statuses == ()
    assert isinstance(resized(("1", "2", "1")), Pod)
    assert resized(("1", "2", "1")).status.container_statuses


def test_a_node_that_declares_no_ephemeral_storage_has_none():
    wanted = pod("wanting", containers=[{"name": "main", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}])
    assert Filtered(node("n1")).refused(wanted) == {"n1": catalogue.NODE_RESOURCES}


def test_features_of_kubelet_that_a_pod_needs():
    wanted = pod("wanting", hostNetwork=True, hostUsers=False, containers=[])
    world = Filtered(node("n1"))
    assert world.why(wanted) == {
        "n1": "NodeDeclaredFeatures: the node does not declare UserNamespacesHostNetworkSupport"
    }
    old = node("n1")
    declared = msgspec.structs.replace(old.status, declared_features=("UserNamespacesHostNetworkSupport",))
    world.inventory.node_changed(old, msgspec.structs.replace(old, status=declared))
    assert world.refused(wanted) == {}
