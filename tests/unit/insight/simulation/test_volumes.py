"""Simulate and explain read volumes: a claim is where its volume is, and belongs to the pod with the UID of its owner."""

import pytest

from controller.insight.simulation import SimulationSettings
from controller.insight.simulation.question import question
from hami_dra.api import names
from tests.support.manifests import claim, cluster, documents, part, pod, simulated, template, workload

HOST = "kubernetes.io/hostname"


def nodes(*given):
    found = []
    for name in given:
        for raw in cluster(name):
            if raw["kind"] == "Node":
                raw["metadata"]["labels"] = {HOST: name}
            found.append(raw)
    return found


def volume(name, host, storage_class="local", claim=""):
    where = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [host]}]}]
    spec = {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": where}}
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}


def storage_class(name="local"):
    mode = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    return {"kind": "StorageClass", "metadata": {"name": name}, **mode}


def volume_claim(name, *, bound="", owner=None):
    metadata = {"name": name, "annotations": {names.BIND_COMPLETED: "yes"} if bound else {}}
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": owner, "controller": True}]
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": REQUEST | {"volumeName": bound}}


REQUEST = {
    "storageClassName": "local",
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "8Gi"}},
}
EPHEMERAL = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": REQUEST}}}


def using(name, *claims, **more):
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return {**pod(name, name, volumes=[*volumes, *more.pop("volumes", ())]), **more}


def placed(report):
    return {entry["pod"].removeprefix("default/"): entry["node"] for entry in report.placements}


def test_a_pod_goes_where_its_volume_is():
    state = [*nodes("n1", "n2"), storage_class(), volume("v", "n2", claim="data"), volume_claim("data", bound="v")]
    report = simulated(*state, claim("p", part()), using("p", "data"))
    assert placed(report) == {"p": "n2"}


def default_class(name, created="", key="storageclass.kubernetes.io/is-default-class"):
    item = storage_class(name)
    return {**item, "metadata": {"name": name, "annotations": {key: "true"}, "creationTimestamp": created or None}}


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([storage_class("a")], ""),
        ([storage_class("a"), default_class("b")], "b"),
        ([default_class("b"), default_class("a")], "a"),
        ([default_class("a", "2026-01-01T00:00:00Z"), default_class("b", "2026-01-02T00:00:00Z")], "b"),
        ([default_class("a", key="storageclass.beta.kubernetes.io/is-default-class")], "a"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_claim_without_a_class_gets_the_default_one(classes, expected, after):
    """As the admission plugin DefaultStorageClass does, wherever in the files the class stands."""
    data = volume_claim("data")
    del data["spec"]["storageClassName"]
    volumes = [volume("in-a", "n1", "a"), volume("in-b", "n2", "b")]
    given = [data, *classes] if after else [*classes, data]
    report = simulated(*nodes("n1", "n2"), *volumes, *given, claim("p", part()), using("p", "data"))
    assert placed(report) == ({"p": {"a": "n1", "b": "n2"}[expected]} if expected else {})


def test_claims_of_ephemeral_volumes_get_the_default_class_too():
    request = {key: value for key, value in REQUEST.items() if key != "storageClassName"}
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": request}}}
    state = [*nodes("n1", "n2"), default_class("b"), volume("in-b", "n2", "b")]
    assert placed(simulated(*state, claim("p", part()), using("p", volumes=[scratch]))) == {"p": "n2"}


def test_a_claim_that_wants_no_class_or_that_a_cluster_has_seen_gets_none():
    state = [*nodes("n1"), default_class("a"), volume("in-a", "n1", "a")]
    for change in ({"spec": REQUEST | {"storageClassName": ""}}, {"metadata": {"name": "data", "uid": "seen"}}):
        data = volume_claim("data") | {"spec": {k: v for k, v in REQUEST.items() if k != "storageClassName"}} | change
        assert placed(simulated(*state, data, claim("p", part()), using("p", "data"))) == {}


@pytest.mark.parametrize(("kubernetes", "fits"), [(None, False), ((1, 37), False), ((1, 36), True)])
def test_the_version_of_kubernetes_decides_where_its_plugins_differ(kubernetes, fits):
    """VolumeLimitScaling is on since 1.37: a node without the driver of a volume that is to be made."""
    made = storage_class("made") | {"provisioner": "csi.example.com"}
    driver = {"kind": "CSIDriver", "metadata": {"name": "csi.example.com"}}
    driver["spec"] = {"preventPodSchedulingIfMissing": True}
    data = volume_claim("data") | {"spec": REQUEST | {"storageClassName": "made"}}
    state = [*nodes("n1"), made, driver, data, claim("p", part()), using("p", "data")]
    assert placed(simulated(*state, kubernetes=kubernetes)) == ({"p": "n1"} if fits else {})


def test_pods_share_free_volumes_out_among_them():
    state = [*nodes("n1", "n2"), storage_class(), volume("va", "n1"), volume("vb", "n2")]
    pods = [each for name in "pqr" for each in (claim(name, part()), volume_claim(f"d{name}"), using(name, f"d{name}"))]
    report = simulated(*state, *pods)
    assert sorted(placed(report).values()) == ["n1", "n2"]
    [refused] = report.unplaced
    assert "VolumeBinding: no free PersistentVolume of StorageClass local fits" in str(refused)


def test_a_missing_claim_is_named():
    report = simulated(*nodes("n1"), claim("p", part()), using("p", "data"))
    assert "PersistentVolumeClaim default/data does not exist; create it" in str(report.unplaced)


def test_claims_that_controllers_will_make_are_counted_on():
    state = [*nodes("n1", "n2"), storage_class(), volume("va", "n1"), volume("vb", "n2"), volume("vc", "n2")]
    spec = using("x")["spec"] | {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
    sets = workload("StatefulSet", "db", spec, replicas=2)
    sets["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": REQUEST}]
    report = simulated(*state, template("t", part()), sets, claim("p", part()), using("p", volumes=[EPHEMERAL]))
    assert sorted(placed(report)) == ["db-0", "db-1", "p"]
    assert sorted(placed(report).values()) == ["n1", "n2", "n2"]


@pytest.mark.parametrize(("owner", "problem"), [("uid-of-p", ""), ("uid-of-an-earlier-p", "was not made for this pod")])
def test_an_ephemeral_volume_is_matched_by_the_uid_of_its_pod(owner, problem):
    target = using("p", volumes=[{"name": "scratch", "ephemeral": {}}])
    target["metadata"]["uid"] = "uid-of-p"
    state = [*nodes("n1"), storage_class(), volume("va", "n1"), volume_claim("p-scratch", owner=owner)]
    asked = question(documents(*state, claim("p", part()), target), "pod", "default/p", SimulationSettings())
    assert problem in asked.problem
    assert (asked.request is None) == bool(problem)


def test_two_objects_with_one_uid_are_two():
    """As in a manifest that was copied from a cluster and renamed."""
    pods = [using("p"), using("q")]
    for each in pods:
        each["metadata"]["uid"] = "the-same"
    report = simulated(*nodes("n1"), claim("p", part()), claim("q", part()), *pods)
    assert placed(report) == {"p": "n1", "q": "n1"}
