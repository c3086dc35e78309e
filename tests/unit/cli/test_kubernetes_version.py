"""The version of Kubernetes decides which nodes fit, where kube-scheduler of 1.36 and of 1.37 differ: an option, or the live cluster's."""

import json

import pytest
import yaml

from hami_dra.api import kinds
from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, part, pod
from tests.support.served import Served

DRIVER = "csi.example.com"
"""Its volumes go to no node without it, since 1.37 (VolumeLimitScaling)."""


def state():
    data = {
        "storageClassName": "made",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    objects = [
        *cluster("n1"),
        {
            "kind": "StorageClass",
            "metadata": {"name": "made"},
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {"kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {"preventPodSchedulingIfMissing": True}},
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": data},
        claim("c", part()),
        pod("p", "c", volumes=volumes),
    ]
    known = {kind.name: kind for kind in kinds.ALL}
    for each in objects:
        kind = known[each["kind"]]
        each["apiVersion"] = kind.api_version
        if kind.namespaced:
            each["metadata"]["namespace"] = "default"
    return objects


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "state.yaml"
    found.write_text(yaml.safe_dump_all(state()))
    return found


FITS = {(): False, ("--kubernetes-version", "1.37"): False, ("--kubernetes-version", "v1.36.4"): True}


@pytest.mark.parametrize("words", FITS)
def test_files_are_judged_as_by_1_37_or_the_version_that_is_given(hami_dra, path, words):
    simulated = json.loads(hami_dra("simulate", "-f", path, "-o", "json", *words).stdout)
    assert bool(simulated["placements"]) == FITS[words]
    explained = json.loads(hami_dra("explain", "p", "-f", path, "-o", "json", *words).stdout)
    assert (explained["outcome"] == "placed") == FITS[words]
    compared = json.loads(hami_dra("whatif", "-f", path, "--replace", "-o", "json", *words).stdout)
    assert (compared["unplaced"] == []) == FITS[words]


@pytest.mark.parametrize(
    ("version", "words", "fits"), [("1.36", (), True), ("1.37", (), False), ("1.36", ("1.37",), False)]
)
def test_a_live_cluster_is_judged_as_by_its_own_version(hami_dra, tmp_path, version, words, fits):
    with Served(state(), version=version) as server:
        more = (
            "--kubeconfig",
            server.kubeconfig(tmp_path),
            "-o",
            "json",
            *(("--kubernetes-version", *words) if words else ()),
        )
        explained = json.loads(hami_dra("explain", "p", *more).stdout)
        compared = json.loads(hami_dra("whatif", "--replace", *more).stdout)
    assert (explained["outcome"] == "placed") == (compared["unplaced"] == []) == fits


@pytest.mark.parametrize(
    ("text", "said"), [("new", "write 1.36, for example"), ("1.35", "needs Kubernetes 1.36 or newer")]
)
def test_what_is_no_version(hami_dra, path, text, said):
    result = hami_dra("simulate", "-f", path, "--kubernetes-version", text)
    assert (result.code, said in result.stderr) == (2, True)


LIVE = [("explain", "p"), ("status",), ("status", "--pending"), ("whatif", "--replace"), ("topology",), ("snapshot",)]


@pytest.mark.parametrize("version", ["1.34", "1.35"])
@pytest.mark.parametrize("words", LIVE, ids=" ".join)
def test_a_cluster_on_which_hami_dra_cannot_run_is_no_place_to_explain(hami_dra, tmp_path, words, version):
    to = ("--to", tmp_path / "state.json") if words == ("snapshot",) else ()
    with Served(state(), version=version) as server:
        result = hami_dra(*words, *to, "--kubeconfig", server.kubeconfig(tmp_path))
    assert (result.code, result.stdout) == (2, "")
    assert "hami-dra needs Kubernetes 1.36 or newer (consumable capacity, device taints" in result.stderr
    assert f"and this is {version}." in result.stderr
    assert "Traceback" not in result.stderr


def test_the_doctor_is_for_such_clusters_too(hami_dra, tmp_path):
    with Served(state(), version="1.35") as server:
        result = hami_dra("doctor", "--kubeconfig", server.kubeconfig(tmp_path))
    assert "hami-dra needs Kubernetes" not in result.stderr
    assert len(server.seen) > 5
