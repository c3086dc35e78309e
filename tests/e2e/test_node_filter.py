"""What kube-scheduler would refuse is known before devices are given: each pod is allocated once, and bound.

How often a pod was allocated is read from the watch of claims. kube-scheduler binds; volumes are made by a provisioner of the test.
"""

import threading
from collections import Counter

import pytest

from hack.controlplane.api import ApiError
from tests.e2e.allocation_count import AllocationCount
from tests.e2e.lab import T4
from tests.e2e.objects import deployment, part, pod, template
from tests.e2e.test_volumes import claim, storage_class, using

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
NODES = 41
REPLICAS = 30
PROVISIONER = "made.example.com"
pytestmark = pytest.mark.on_1_36


@pytest.fixture
def nodes(lab):
    """41 nodes in 30 zones."""
    for zone in range(REPLICAS):
        lab.machines(T4, *(f"n{number:02}" for number in range(zone, NODES, REPLICAS)), labels={ZONE: f"z{zone:02}"})
    lab.create(template("part", part("1Gi")))
    return lab


@pytest.fixture
def three(lab):
    """Three nodes, each a zone."""
    for zone in "abc":
        lab.machines(T4, f"n-{zone}", labels={ZONE: zone})
    lab.create(template("part", part("1Gi")))
    yield lab
    lab.clear()
    lab.api.delete(f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims")


def apart(app, key=HOST):
    """Anti-affinity against the pods of that app."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def prefers(zone):
    expression = {"key": ZONE, "operator": "In", "values": [zone]}
    term = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def on_port(name, port, **spec):
    item = pod(name, templates=["part"], **spec)
    item["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
    return item


def allocated(lab):
    return sum("allocation" in each.get("status", {}) for each in lab.claims())


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_thirty_replicas_that_keep_apart_take_thirty_allocations(nodes, key):
    lab = nodes
    with AllocationCount(lab.api) as count:
        lab.create(deployment("web", REPLICAS, pod(templates=["part"], affinity=apart("web", key))))
        found = lab.wait_running(REPLICAS)
        names = [each.pod for each in found]
        assert count.of(*names) == dict.fromkeys(names, 1)
    domains = [int(each.node[1:]) % REPLICAS if key == ZONE else each.node for each in found]
    assert len(set(domains)) == REPLICAS
    assert (count.allocations_seen, count.problems, lab.events(reason="AllocationUndone")) == (REPLICAS, [], [])


def test_a_host_port_is_given_once_on_each_node_and_the_fourth_pod_holds_no_device(three):
    lab = three
    names = ["p0", "p1", "p2"]
    with AllocationCount(lab.api) as count:
        lab.create(*(on_port(name, 8080) for name in names))
        found = lab.wait_running(names=names)
        assert sorted(each.node for each in found) == ["n-a", "n-b", "n-c"]
        lab.create(on_port("late", 8080), on_port("other", 8081))
        assert "port 8080" in lab.wait_event("late", "FilteringFailed", "is taken by")
        lab.wait_running(names=["other"])
        assert count.of(*names, "late", "other") == {**dict.fromkeys(names, 1), "late": 0, "other": 1}
        lab.delete_pod("p1", gracePeriodSeconds=0)
        lab.wait_running(names=["late"])
        assert count.of("late") == {"late": 1}


def test_pods_that_keep_others_away_are_respected(three):
    lab = three
    with AllocationCount(lab.api) as count:
        lonely = [
            pod(f"lonely-{zone}", templates=["part"], affinity=apart("web", ZONE), nodeSelector={ZONE: zone})
            for zone in "ab"
        ]
        lab.create(*lonely)
        lab.wait_running(names=["lonely-a", "lonely-b"])
        names = [f"web-{number}" for number in range(4)]
        lab.create(*(pod(name, templates=["part"], labels={"app": "web"}) for name in names))
        found = lab.wait_running(names=names)
        assert {each.node for each in found if each.pod in names} == {"n-c"}
        assert count.of(*names) == dict.fromkeys(names, 1)


def test_a_preferred_zone_is_followed_while_it_is_free_and_given_up_when_it_is_full(three):
    lab = three
    lab.create(template("whole", part("15Gi")))
    with AllocationCount(lab.api) as count:
        names = [f"p{number}" for number in range(6)]
        lab.create(*(pod(name, templates=["whole"], affinity=prefers("b")) for name in names))
        found = lab.wait_running(names=names)
        assert count.of(*names) == dict.fromkeys(names, 1)
    assert Counter(each.node for each in found)["n-b"] == 4
    assert lab.overcommitted() == []


class Provisioner:
    """Makes the volume that a claim asks for, on the node that kube-scheduler chose for it."""

    def __init__(self, lab):
        self._lab = lab
        self._path = f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioner", daemon=True)
        self.nodes = {}
        self.problems = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopping.set()
        self._thread.join(timeout=10)

    def _run(self):
        while not self._stopping.wait(0.1):
            try:
                for item in self._lab.api.list(self._path):
                    self._serve(item)
            except ApiError as error:
                self.problems.append(str(error))

    def _serve(self, item):
        meta, spec = item["metadata"], item["spec"]
        node = meta.get("annotations", {}).get("volume.kubernetes.io/selected-node")
        if node is None or spec.get("volumeName") or meta["name"] in self.nodes:
            return
        self.nodes[meta["name"]] = node
        where = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta["namespace"]}
        self._lab.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {
                    "name": f"made-{meta['uid']}",
                    "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
                },
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": spec["accessModes"],
                    "storageClassName": spec["storageClassName"],
                    "claimRef": {**reference, "name": meta["name"], "uid": meta["uid"]},
                    "csi": {"driver": PROVISIONER, "volumeHandle": meta["uid"]},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": where}},
                },
            }
        )


def made_in(name, *zones):
    """A StorageClass whose volumes are made in these zones, once their pod has a node."""
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
    return {**storage_class(name), "provisioner": PROVISIONER, "allowedTopologies": topologies}


def test_volumes_that_are_made_for_their_pod_are_made_where_their_class_allows(three):
    lab = three
    lab.create(made_in("made-in-b", "b"))
    names = [f"p{number}" for number in range(3)]
    with AllocationCount(lab.api) as count, Provisioner(lab) as provisioner:
        lab.create(*(claim(f"data-{name}", "made-in-b") for name in names))
        lab.create(*(using(f"data-{name}", name=name) for name in names))
        found = lab.wait_running(names=names)
        assert count.of(*names) == dict.fromkeys(names, 1)
    assert {each.node for each in found} == {"n-b"}
    assert provisioner.nodes == {f"data-{name}": "n-b" for name in names}
    assert provisioner.problems == []
