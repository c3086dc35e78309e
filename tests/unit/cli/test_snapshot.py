"""hami-dra snapshot: what is in the file, what must never be, and that others read it."""

import copy
import json
import math
import subprocess

import pytest
import yaml

from controller.cli import progress
from controller.insight.manifests import READ, gather
from controller.insight.simulation import SimulationSettings, simulate
from controller.insight.simulation.essence import documents_of, essence
from hami_dra.api import kinds, names
from hami_dra.api.allocator import allocator_of, with_allocator
from hami_dra.api.resource import AllocationResult
from hami_dra.kube.documents import read_documents
from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, documents, part, pod, template
from tests.support.served import Served

SECRET = "hunter2"
"""Wherever something secret may stand in an object that is read."""
CONTAINER = {
    "name": "main",
    "image": f"registry.example/{SECRET}",
    "command": [SECRET],
    "args": [f"--password={SECRET}"],
    "env": [
        {"name": SECRET, "value": SECRET},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "k"}}},
    ],
    "envFrom": [{"secretRef": {"name": SECRET}}],
    "volumeMounts": [{"name": SECRET, "mountPath": SECRET}],
    "livenessProbe": {"exec": {"command": [SECRET]}, "httpGet": {"httpHeaders": [{"name": "A", "value": SECRET}]}},
    "lifecycle": {"preStop": {"exec": {"command": [SECRET]}}},
}
METADATA = {
    "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"password": SECRET}),
        "example.com/token": SECRET,
        SECRET: "x",
    },
    "managedFields": [{"manager": SECRET, "fieldsV1": {SECRET: {}}}],
    "selfLink": SECRET,
}
OPAQUE = {"opaque": {"driver": "other.example.com", "parameters": {"password": SECRET}}}


def leaky(raw):
    """The same object with a secret wherever the API has room for one."""
    raw = copy.deepcopy(raw)
    metadata = raw["metadata"]
    raw["metadata"] = {
        **metadata,
        **METADATA,
        "annotations": {**metadata.get("annotations", {}), **METADATA["annotations"]},
    }
    spec = raw.setdefault("spec", {})
    status = raw.setdefault("status", {})
    match raw["kind"]:
        case "Pod":
            for name in ("containers", "initContainers", "ephemeralContainers"):
                spec[name] = [*({**each, **CONTAINER} for each in spec.get(name, [])), CONTAINER]
            spec |= {"volumes": [{"name": SECRET, "secret": {"secretName": SECRET}}], "hostAliases": [SECRET]}
            spec |= {"imagePullSecrets": [{"name": SECRET}], "serviceAccountName": SECRET}
            status |= {"message": SECRET, "conditions": [{"type": "Ready", "status": "True", "message": SECRET}]}
            status |= {"containerStatuses": [{"image": SECRET, "state": {"waiting": {"message": SECRET}}}]}
        case "Node":
            status |= {
                "images": [{"names": [SECRET]}],
                "nodeInfo": {"bootID": SECRET},
                "addresses": [{"address": SECRET}],
            }
            status["conditions"] = [{"type": "Ready", "status": "True", "message": SECRET, "lastHeartbeatTime": "now"}]
        case "ResourceClaim":
            spec["devices"]["config"] = [OPAQUE]
            allocated = {"results": [], "config": [{"source": "FromClaim", **OPAQUE}]}
            status |= {"allocation": {"devices": allocated}}
            status["devices"] = [
                {
                    "driver": "d", "pool": "p", "device": "e", "data": {"key": SECRET},
                    "networkData": {"hardwareAddress": SECRET}, "conditions": [{"type": "R", "message": SECRET}],
                }
            ]  # fmt: skip
        case "ResourceClaimTemplate":
            spec["metadata"] = METADATA
            spec["spec"]["devices"]["config"] = [OPAQUE]
        case "DeviceClass":
            spec["config"] = [OPAQUE]
    return raw


STATE = [
    *cluster("n1"),
    claim("c"),
    template("t"),
    pod("a", "c", annotations={names.DEVICE_POLICY: "binpack"}),
    {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "labels": {"a": "b"}}},
    {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpu": "1"}},
    },
    {"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": "high"}, "value": 5},
    {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": SECRET}, "data": {"k": SECRET}},
]


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def taken(hami_dra, tmp_path, monkeypatch):
    """What `hami-dra snapshot` writes of such a cluster, however slow the machine is."""
    monkeypatch.setattr(progress, "PATIENCE", math.inf)

    def taken(objects, *words, **options):
        with Served(objects, **options) as server:
            return hami_dra("snapshot", "--kubeconfig", server.kubeconfig(tmp_path), *words)

    return taken


def test_nothing_secret_leaves(taken):
    result = taken([leaky(raw) for raw in STATE])
    assert result.code == 0
    assert len(json.loads(result.stdout)["items"]) == len(STATE) - 1
    assert SECRET not in result.stdout
    assert SECRET not in result.stderr


def test_what_decisions_read_stays():
    """As far as the Structs tell, nothing is missing but words and times."""
    for raw in STATE[:-1]:
        kind = next(each for each in READ if each.name == raw["kind"])
        (before,) = gather(documents(raw)).items
        (after,) = gather(documents(essence(kind, raw))).items
        assert after.object == before.object


def test_our_own_parameters_stay():
    ours = {
        "opaque": {"driver": "nvidia.hami.io", "parameters": {"apiVersion": "hami.io/v1alpha1", "memoryPercent": 50}}
    }
    raw = claim("c")
    raw["spec"]["devices"]["config"] = [ours]
    assert essence(kinds.RESOURCE_CLAIM, raw)["spec"]["devices"]["config"] == [ours]


def test_it_says_who_made_an_allocation():
    """Otherwise doctor would call every allocation in a snapshot another component's."""
    raw = claim("c")
    raw["status"] = {"allocation": with_allocator({"devices": {"results": []}}, "hami-dra")}
    kept = essence(kinds.RESOURCE_CLAIM, raw)["status"]["allocation"]
    assert allocator_of(AllocationResult.from_json(kept)) == "hami-dra"


def test_the_same_state_gives_the_same_text_whatever_else_changes(taken):
    def later(raw):
        metadata = {**raw["metadata"], "resourceVersion": "99", "generation": 7}
        return {key: raw[key] for key in reversed(raw)} | {
            "metadata": {key: metadata[key] for key in reversed(metadata)}
        }

    assert taken(STATE).stdout == taken([later(raw) for raw in reversed(STATE)]).stdout


def test_a_file_in_json_or_yaml(taken, tmp_path):
    as_json, as_yaml = tmp_path / "s.json", tmp_path / "s.yaml"
    for path in (as_json, as_yaml):
        result = taken(STATE, "--to", path)
        assert (result.code, result.stdout) == (0, "")
        assert result.stderr == f"{len(STATE) - 1} objects in {path}\n"
    assert json.loads(as_json.read_text()) == yaml.safe_load(as_yaml.read_text())
    assert json.loads(as_json.read_text())["kind"] == "List"


def test_simulate_says_the_same_of_the_snapshot(taken, tmp_path):
    """Legacy pods too: the conversion reads JSON, not Structs."""
    legacy = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    # parameters of other drivers are the one thing of an allocation that a snapshot does not have
    state = [raw if raw["kind"] == "DeviceClass" else leaky(raw) for raw in cluster("n1", "n2")]
    state += [template("t", part("20Gi")), pod("b", "template:t"), pod("old", limits=legacy)]
    state[-1]["metadata"]["namespace"] = state[-2]["metadata"]["namespace"] = "default"
    path = tmp_path / "s.json"
    assert taken(state, "-o", path).code == 0

    def stamped(report):
        placements = json.loads(json.dumps(report.document()))["placements"]
        for entry in placements:
            for held in entry["claims"]:
                held["allocation"].pop("allocationTimestamp")
                held["allocation"]["devices"]["results"][0].pop("shareID")
        return placements

    placed = stamped(simulate(read_documents([path]), SimulationSettings()))
    assert [entry["pod"] for entry in placed] == ["default/b", "default/old"]
    assert placed == stamped(simulate(documents(*state), SimulationSettings()))


def test_stores_of_a_controller_are_documents_too():
    items = gather(documents(*STATE)).items
    again = documents_of((item.kind, item.object) for item in items)
    assert [item.object for item in gather(again).items] == [item.object for item in items]


def test_an_object_that_cannot_be_read_is_left_out_by_name(taken):
    odd = pod("odd")
    odd["metadata"]["namespace"] = "default"
    odd["spec"]["tolerations"] = "all"
    result = taken([*STATE, odd])
    assert result.code == 0
    assert result.stderr == (
        "note: cluster: Pod default/odd: spec.tolerations: a list is wanted, not text; it is left out\n"
    )
    assert "odd" not in result.stdout


def test_nulls_of_the_api_are_no_fault(taken):
    odd = pod("odd")
    odd["metadata"] |= {"namespace": "default", "creationTimestamp": None, "labels": None}
    result = taken([odd])
    assert result.stderr == ""
    assert json.loads(result.stdout)["items"][0]["metadata"]["name"] == "odd"


def test_a_format_or_as_once_a_file(taken, tmp_path):
    assert yaml.safe_load(taken(STATE, "-o", "yaml").stdout) == json.loads(taken(STATE, "-o", "json").stdout)
    assert "pod/" in taken(STATE, "-o", "name").stdout
    result = taken(STATE, "-o", tmp_path / "s.json")
    assert "-o names a format now, as in kubectl; write: hami-dra snapshot --to" in result.stderr
    assert json.loads((tmp_path / "s.json").read_text())["kind"] == "List"
    assert "none of yaml, json, name" in taken(STATE, "-o", "table").stderr


def test_a_file_that_cannot_be_written(taken, tmp_path):
    result = taken(STATE, "--to", tmp_path / "none" / "s.json")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("hami-dra: --to ")


def test_a_cluster_that_may_not_be_read_gives_no_file(taken, tmp_path):
    path = tmp_path / "s.json"
    result = taken(STATE, "-o", path, forbidden=["pods"])
    assert result.code == 2
    assert not path.exists()


def test_two_snapshots_differ_where_the_state_does(taken, tmp_path):
    before, after = tmp_path / "1.json", tmp_path / "2.json"
    taken(STATE, "-o", before)
    changed = copy.deepcopy(STATE)
    changed[-5]["metadata"]["annotations"] = {names.DEVICE_POLICY: "spread"}
    taken(changed, "-o", after)
    lines = subprocess.run(["diff", before, after], capture_output=True, text=True, check=False).stdout.splitlines()
    assert [line.split(":")[-1].strip() for line in lines if line[0] in "<>"] == ['"binpack"', '"spread"']
