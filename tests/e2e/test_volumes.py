"""Pods with volumes on a real control plane: the node is right the first time, and no device is held for a volume that is not there.

kube-controller-manager binds claims, kube-scheduler those that wait for their pod.
"""

import time

import pytest

from tests.e2e.allocation_count import AllocationCount
from tests.e2e.lab import T4
from tests.e2e.objects import part, pod, template

HOST = "kubernetes.io/hostname"
pytestmark = pytest.mark.on_1_36


@pytest.fixture
def volumes(lab):
    lab.machines(T4, "n0", "n1", "n2")
    lab.create(template("part", part("4Gi")))
    with AllocationCount(lab.api) as count:
        yield lab
    lab.clear()
    lab.api.delete(f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims")
    assert set(count.by_pod.values()) == {1}, "each pod that has devices was given them once"


def storage_class(name, mode="WaitForFirstConsumer"):
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": mode,
    }


def volume(name, storage_class, *nodes, modes=("ReadWriteOnce",)):
    where = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": list(nodes)}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": list(modes),
            "storageClassName": storage_class,
            "local": {"path": "/mnt/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": where}},
        },
    }


def claim(name, storage_class, modes=("ReadWriteOnce",)):
    spec = {
        "accessModes": list(modes),
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "8Gi"}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def using(*claims, name, **spec):
    listed = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": each}} for n, each in enumerate(claims)]
    return pod(name, templates=["part"], volumes=listed, **spec)


def allocated(lab):
    return [each["metadata"]["name"] for each in lab.claims() if "allocation" in each.get("status", {})]


def seconds_until_bound(lab, claim_name, *pods, name):
    """From the claim's creation (and that of the pods) until kube-scheduler has bound the named pod."""
    began = time.monotonic()
    lab.create(claim(claim_name, "now"), *pods)
    lab.hami.wait_for(f"pod {name} bound", lambda: lab.pod(name)["spec"].get("nodeName"))
    return time.monotonic() - began


def test_a_claim_that_is_missing_holds_no_device_and_its_pod_runs_as_soon_as_it_comes(volumes):
    """Two seconds more than pods that are made after their claims, also where kube-scheduler has refused the pod meanwhile.

    Such pods are timed before and after the others, for the machine may have something else to do.
    On a machine with nothing else to do each takes 0.15 s, of which the binding of the claim is 0.12.
    """
    lab = volumes
    nodes = ("n0", "n1", "n2")
    lab.create(storage_class("now", "Immediate"), *(volume(f"now-{number}", "now", *nodes) for number in range(4)))
    usual = seconds_until_bound(lab, "first", using("first", name="after-its-claim"), name="after-its-claim")
    lab.create(using("tried", name="tried"), using("new", name="new"))
    note = lab.wait_event("new", "VolumeNotReady")
    assert f"PersistentVolumeClaim {lab.namespace}/new does not exist" in note
    took = {"new": seconds_until_bound(lab, "new", name="new")}
    lab.hami.wait_for("kube-scheduler to refuse the other", lambda: "not found" in lab.refusal("tried"))
    assert len(allocated(lab)) == 2
    took["tried"] = seconds_until_bound(lab, "tried", name="tried")
    again = seconds_until_bound(lab, "last", using("last", name="last"), name="last")
    lab.wait_running(names=["after-its-claim", "new", "tried", "last"])
    assert max(took.values()) < 2 + 2 * max(usual, again), (took, usual, again)


def test_a_volume_on_one_node_takes_one_allocation(volumes):
    lab = volumes
    lab.create(storage_class("local"), volume("local-n2", "local", "n2"), claim("data", "local"))
    lab.create(using("data", name="p"))
    (placement,) = lab.wait_running(names=["p"])
    assert placement.node == "n2"
    assert lab.events(reason="AllocationUndone") == []


def test_the_first_of_two_pods_gets_the_only_volume_and_the_other_no_device(volumes):
    lab = volumes
    lab.create(storage_class("one"), volume("only", "one", "n0"), claim("a", "one"), claim("b", "one"))
    lab.create(using("a", name="first"), using("b", name="second"))
    note = lab.wait_event("second", "FilteringFailed", "NodeVolumeNotAvailable")
    assert "no free PersistentVolume of StorageClass one fits" in note
    (placement,) = lab.wait_running(names=["first"])
    assert (placement.node, len(allocated(lab))) == ("n0", 1)
    lab.create(volume("another", "one", "n1"))
    lab.wait_running(names=["first", "second"])
    assert lab.placement("second").node == "n1"


def test_a_claim_for_one_pod_at_a_time_is_waited_for(volumes):
    lab = volumes
    mode = ("ReadWriteOncePod",)
    lab.create(storage_class("solo"), volume("solo-n1", "solo", "n1", modes=mode), claim("data", "solo", mode))
    lab.create(using("data", name="first"))
    lab.wait_running(names=["first"])
    lab.create(using("data", name="second"))
    note = lab.wait_event("second", "VolumeNotReady")
    assert f"Pod {lab.namespace}/first uses it" in note
    assert len(allocated(lab)) == 1
    lab.delete_pod("first", gracePeriodSeconds=0)
    lab.wait_running(names=["second"])


def test_a_node_that_attaches_no_more_volumes_is_not_chosen(volumes):
    lab = volumes
    driver = "csi.example.com"
    for node, count in (("n0", 1), ("n1", 1), ("n2", 0)):
        drivers = [{"name": driver, "nodeID": node, "allocatable": {"count": count}, "topologyKeys": None}]
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": node},
            "spec": {"drivers": drivers},
        }
        lab.create(body)
    lab.create(storage_class("csi", "Immediate"))
    for name in ("a", "b", "c"):
        item = volume(f"csi-{name}", "csi", "n0", "n1", "n2")
        del item["spec"]["local"]
        lab.create(
            {**item, "spec": {**item["spec"], "csi": {"driver": driver, "volumeHandle": name}}}, claim(name, "csi")
        )
    lab.create(*[using(name, name=f"p{name}") for name in ("a", "b")])
    placements = lab.wait_running(names=["pa", "pb"])
    assert sorted(each.node for each in placements) == ["n0", "n1"]
    lab.create(using("c", name="pc"))
    note = lab.wait_event("pc", "FilteringFailed", "NodeVolumeLimitExceeded")
    assert "CSI driver csi.example.com attaches at most" in note
    assert len(allocated(lab)) == 2
    lab.delete_pod("pa", gracePeriodSeconds=0)
    lab.wait_running(names=["pb", "pc"])
