"""What stands in claims, volumes and the objects of CSI drivers ends no decision, and holds up none of the others."""

import msgspec
import pytest

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.volumes.static_volumes import _Fitting
from controller.cluster.volumes.storage_capacity import StorageCapacities
from controller.cluster.volumes.volume_binding import VolumeBinding
from controller.reasons import catalogue
from hami_dra.api import kinds, names
from hami_dra.api.kinds import POD
from tests.cards import node, pod
from tests.unit.rules.filtered import Filtered

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NODES, MANY = 20, 1000
DRIVER = "csi.example.com"
BY_NAME = {kind.name: kind for kind in kinds.STORAGE}


class World(Filtered):
    """Nodes in two zones, and a class whose volumes are bound once a pod waits for them."""

    def __init__(self, provisioner="kubernetes.io/no-provisioner"):
        super().__init__(*[node(f"n{n}", labels={HOST: f"n{n}", ZONE: f"z{n % 2}"}) for n in range(NODES)])
        self.provisioner = provisioner
        self.put("StorageClass", "wait", volumeBindingMode="WaitForFirstConsumer", provisioner=provisioner)

    def put(self, kind, name, namespace="", *, annotations=None, gone=False, **fields):
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations or {}}
        found = msgspec.convert({"metadata": metadata, **fields}, BY_NAME[kind].type)
        BY_NAME[kind].settled(found)
        self.inventory.volumes.changed(kind, found if gone else None, None if gone else found)

    def volume(self, name, *requirements, size="10Gi", **spec):
        affinity = (
            {"required": {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}} if requirements else None
        )
        spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "wait", **spec}
        self.put("PersistentVolume", name, spec={**spec, "nodeAffinity": affinity}, status={"phase": "Available"})

    def claim(self, name, namespace="evil", *, size="1Gi", bound="", **spec):
        requests = {"requests": {"storage": size}}
        modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": "wait", "resources": requests}
        done = {names.BIND_COMPLETED: "yes"} if bound else {}
        self.put(
            "PersistentVolumeClaim", name, namespace, annotations=done, spec={**modes, "volumeName": bound, **spec}
        )

    def capacity(self, name, topology, amount="10Gi", **more):
        found = {"storageClassName": "wait", "capacity": amount, "nodeTopology": topology, **more}
        self.put("CSIStorageCapacity", name, "storage", **found)


def requirement(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def using(*claims, name="asking", namespace="evil", **spec):
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": claim}} for n, claim in enumerate(claims)]
    return pod(name, namespace=namespace, volumes=volumes, **spec)


def test_claims_of_one_pod_are_matched_once_for_all_nodes_that_reach_the_same_volumes(monkeypatch):
    """They were matched for every node: 100 claims beside 2,000 volumes took minutes at 5,000 nodes."""
    found, tried, bind = World(), [], VolumeBinding.bind
    for number in range(40):
        found.volume(f"free-{number}", requirement(ZONE, "In", f"z{number % 2}"), size=f"{1 + number // 4}Gi")
    names_of_claims = [f"claim-{number}" for number in range(12)]
    for number, each in enumerate(names_of_claims):
        found.claim(each, size=f"{1 + number // 2}Gi")
    monkeypatch.setattr(VolumeBinding, "bind", lambda *given: tried.append(given[2]) or bind(*given))
    assert found.refused(using(*names_of_claims)) == {}
    assert len(tried) <= 2


def test_what_is_left_after_many_tries_is_up_to_kube_scheduler(monkeypatch):
    monkeypatch.setattr("controller.cluster.volumes.volume_binding._MOST_TRIED", 10)
    found = World()
    for number in range(NODES):
        found.volume(f"local-{number}", requirement(HOST, "In", f"n{number}"))
    for name in ("one", "two"):
        found.claim(name)
    assert len(found.refused(using("one", "two"))) == 5


def test_a_pod_of_very_many_volumes_is_refused_and_counts_for_nobody_if_it_runs():
    found = World()
    claims = [f"claim-{number}" for number in range(300)]
    for number, each in enumerate(claims):
        found.volume(f"pv-{number}", csi={"driver": DRIVER, "volumeHandle": str(number)})
        found.claim(each, bound=f"pv-{number}")
    asked = using(*claims)
    assert POD.settled(asked)
    (why,) = {*found.why(asked).values()}
    assert why.startswith("the pod is too large: spec.volumes has ")
    assert len(found.refused(asked)) == NODES
    running = using(*claims, name="running", nodeName="n0")
    assert POD.settled(running)
    found.run(running)
    found.put("CSINode", "n0", spec={"drivers": [{"name": DRIVER, "allocatable": {"count": 10}}]})
    assert found.refused(using("claim-1", name="honest")) == {}
    found.inventory.pod_changed(running, None)


def test_a_claim_whose_selector_is_very_long_holds_its_pod_and_reads_no_volume(monkeypatch):
    found = World()
    found.volume("free")
    found.claim("long", selector={"matchExpressions": [requirement(f"evil-{n}", "DoesNotExist") for n in range(MANY)]})
    monkeypatch.setattr(_Fitting, "_update", None)
    (why,) = {*found.why(using("long")).values()}
    assert why.startswith("VolumeBinding: PersistentVolumeClaim evil/long is too large: spec.selector has ")


def test_sizes_that_one_namespace_asks_for_push_out_none_of_the_others(monkeypatch):
    found, made, init = World(), [], _Fitting.__init__
    found.volume("free", requirement(ZONE, "In", "z1"), size="100Gi")
    found.claim("data", "honest", size="7Gi")
    honest = using("data", namespace="honest")
    monkeypatch.setattr(_Fitting, "__init__", lambda *given: made.append(given[2].size) or init(*given))
    assert len(found.refused(honest)) == NODES // 2
    for number in range(1200):
        found.claim(f"claim-{number}", size=f"{1 + number}Mi")
        found.refused(using(f"claim-{number}"))
    made.clear()
    assert len(found.refused(honest)) == NODES // 2
    assert not made


@pytest.mark.parametrize("count", [-1, -(2**31), 0, 2**31, 2**63, 10**30])
def test_no_limit_of_a_node_breaks_a_decision(count):
    found = World()
    found.volume("pv", csi={"driver": DRIVER, "volumeHandle": "h"})
    found.claim("data", bound="pv")
    found.put("CSINode", "n3", spec={"drivers": [{"name": DRIVER, "allocatable": {"count": count}}]})
    assert found.refused(using("data")) == ({"n3": catalogue.NODE_VOLUME_LIMITS} if count <= 0 else {})


def test_a_node_that_names_thousands_of_drivers_takes_the_place_of_64(monkeypatch):
    found = World()
    found.volume("pv", csi={"driver": DRIVER, "volumeHandle": "h"})
    found.claim("data", bound="pv")
    drivers = [{"name": f"evil-{number}", "allocatable": {"count": 1}} for number in range(5 * MANY)]
    plugins = {names.MIGRATED_PLUGINS: ",".join(f"evil-{number}" for number in range(5 * MANY))}
    found.put("CSINode", "n3", annotations=plugins, spec={"drivers": drivers})
    assert found.refused(using("data")) == {}
    columns = found.inventory.volumes._csi_nodes
    assert len(columns._limits) == len(columns._installed) == len(columns._migrated) == 64


@pytest.mark.parametrize(
    "amount", ["1e1000000", "-5", "99999999999999999999999E", "abc", "1e-9999999", "", "0x10", "-9E"]
)
def test_no_amount_of_storage_breaks_a_decision(amount):
    found = World(DRIVER)
    found.put("CSIDriver", DRIVER, spec={"storageCapacity": True})
    found.capacity("a", {"matchLabels": {HOST: "n1"}}, amount)
    found.capacity("b", {"matchLabels": {HOST: "n2"}}, maximumVolumeSize=amount)
    found.volume("pv", size=amount)
    for name, size in (("asks", amount), ("honest", "1Gi")):
        found.claim(name, size=size)
        found.why(using(name))
        found.inventory.assume_pod(using(name), "n1")
        found.inventory.forget_pod(using(name).metadata.uid)


def test_thousands_of_capacities_are_read_once_and_one_that_changes_alone(monkeypatch):
    """All were read for every decision: 5,000 took 200 ms at 5,000 nodes."""
    found, computed, compute = World(DRIVER), [], StorageCapacities._compute
    found.put("CSIDriver", DRIVER, spec={"storageCapacity": True})
    for number in range(MANY):
        found.capacity(f"c{number}", {"matchLabels": {HOST: f"n{number}"}}, "1Gi" if number % 2 else "5Gi")
    found.claim("data", size="3Gi")
    monkeypatch.setattr(StorageCapacities, "_compute", lambda *given: computed.append(1) or compute(*given))
    asked = using("data")
    for number in range(NODES):
        assert (f"n{number}" in found.refused(asked)) == (number % 2 == 1)
        found.capacity(f"c{number}", {"matchLabels": {HOST: f"n{number}"}}, "1Gi" if number % 2 == 0 else "5Gi")
        assert (f"n{number}" in found.refused(asked)) == (number % 2 == 0)
        found.capacity(f"c{number}", {"matchLabels": {HOST: f"n{number}"}}, "1Gi" if number % 2 else "5Gi")
    assert len(computed) == 1
    matched = []
    monkeypatch.setattr(NodeLabels, "matching", lambda *given: matched.append(given))
    for number in range(2 * MANY):
        found.capacity(f"w{number}", {"matchExpressions": [requirement(HOST, "NotIn", str(number), "x")]})
    assert found.refused(asked) == {}
    assert not matched


def test_an_ephemeral_volume_does_not_get_the_claim_of_another_pod():
    found = World()
    found.volume("free")
    found.claim("mine-data", "team")
    volume = {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}
    (why,) = {*found.why(pod("mine", namespace="team", volumes=[volume])).values()}
    assert "PersistentVolumeClaim team/mine-data was not made for this pod" in why
    found.run(pod("mine", namespace="team", volumes=[volume], nodeName="n0"))
    assert found.refused(using("mine-data", namespace="team")) == {}
    assert found.refused(pod("honest")) == {}


def test_claims_and_classes_that_come_and_go_leave_nothing_behind():
    found = World()
    found.volume("free")
    asked = using("data")
    for _ in range(100):
        found.claim("data")
        assert found.refused(asked) == {}
        found.inventory.assume_pod(asked, "n1")
        found.put("PersistentVolumeClaim", "data", "evil", gone=True)
        (why,) = {*found.why(asked).values()}
        assert why == "VolumeRestrictions: PersistentVolumeClaim evil/data does not exist; create it"
        found.inventory.forget_pod(asked.metadata.uid)
    book = found.inventory.volumes
    assert not book._reservations
    assert not book._users
    assert not book._selected
    assert not book._free._reserved
    found.claim("data")
    found.put("StorageClass", "wait", gone=True)
    (why,) = {*found.why(asked).values()}
    assert "its StorageClass wait does not exist" in why
    found.put("StorageClass", "wait", volumeBindingMode="WaitForFirstConsumer", provisioner=found.provisioner)
    assert found.refused(asked) == {}
