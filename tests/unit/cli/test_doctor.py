"""hami-dra doctor as a user types it: what it prints, and its exit status."""

import json

import pytest
import yaml

from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, part, pod, workload
from tests.support.served import Served
from tests.unit.cli.test_status import holder


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def file(tmp_path):
    def file(*raws):
        path = tmp_path / "state.yaml"
        path.write_text(yaml.safe_dump_all([raw for each in raws for raw in each]))
        return path

    return file


def test_nothing_is_wrong(hami_dra, file):
    result = hami_dra("doctor", "-f", file(cluster("n1")))
    assert result.code == 0
    assert result.stdout.splitlines()[0] == "15 checks made: no errors, no warnings"
    assert "not made webhook: it needs the live cluster, and files were read" in result.stdout


def test_what_is_wrong_is_told_with_its_fix(hami_dra, file):
    path = file(cluster("n1"), holder("a", "gpu-0", memory="10Gi"), holder("[b]", "gpu-0", memory="10Gi"))
    result = hami_dra("doctor", "-f", path)
    assert result.code == 1
    conclusion, _, first, second, third = result.stdout.splitlines()[:5]
    assert conclusion == "15 checks made: 1 error, 2 warnings"
    assert first == "error    devices: Device nvidia.hami.io/n1/gpu-0"
    assert second.strip() == "it is overcommitted by team/[b], team/a"
    assert third.strip().startswith("fix: ")
    document = json.loads(hami_dra("doctor", "-f", path, "-o", "json").stdout)
    assert set(document) == {"healthy", "findings", "checked", "skipped"}
    assert document["healthy"] is False
    assert set(document["findings"][0]) == {"check", "severity", "object", "problem", "fix"}


def test_what_pods_and_workloads_say_without_effect(hami_dra, file):
    spec = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    wanted = workload("Deployment", "d", spec)
    wanted["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "binpack"}
    opted_out = pod("p", labels={"hami.io/webhook": "ignore"}, annotations={"hami.io/xyzzy": ""})
    output = hami_dra(
        "doctor", "-f", file(cluster("n1"), [wanted, opted_out, pod("q", limits={"nvidia.com/gpus": 1})])
    ).stdout
    assert "notices: Deployment default/d" in output
    assert "annotation hami.io/gpu-scheduler-policy is set on the Deployment" in output
    assert "spec.resourceClaims[gpu] is used by no container" in output
    assert "did you mean nvidia.com/gpu?" in output
    assert "xyzzy" not in output


def test_warnings_alone_are_no_failure(hami_dra, file):
    result = hami_dra("doctor", "-f", file(cluster("n1"), holder("a", "gpu-0")))
    assert result.code == 0
    assert "warning  devices: ResourceClaim team/a" in result.stdout


def test_where_it_cannot_look(hami_dra, tmp_path):
    missing = tmp_path / "none.yaml"
    result = hami_dra("doctor", "-f", missing)
    assert (result.code, result.stdout) == (2, "")
    assert str(missing) in result.stderr
    assert hami_dra("doctor", "--kubeconfig", tmp_path / "none").code == 2


def test_pods_that_no_node_may_run_are_named_with_plugin_and_object(hami_dra, file):
    """Those that wait for cards are not: a full cluster is nothing to repair."""
    volume = pod("volume", "c", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    picky = pod("picky", "c", nodeSelector={"disk": "fast"})
    path = file(cluster("n1"), [claim("c"), claim("large", part(memory="90Gi")), volume, picky, pod("big", "large")])
    result = hami_dra("doctor", "-f", path, "-o", "json")
    found = {each["object"]: each for each in json.loads(result.stdout)["findings"]}
    assert result.code == 0
    assert set(found) == {"Pod default/volume", "Pod default/picky"}
    assert "PersistentVolumeClaim default/data does not exist; create it" in found["Pod default/volume"]["problem"]
    assert "nodeSelector wants disk=fast; no node has the label disk" in found["Pod default/picky"]["problem"]
    assert found["Pod default/picky"]["fix"] == "hami-dra explain picky -n default"


@pytest.mark.parametrize(
    ("less", "check"),
    [
        ({"forbidden": ["devicetaintrules"]}, "fence"),
        ({"forbidden": ["resourcequotas"]}, "quotas"),
        ({"forbidden": ["storageclasses"]}, "refusals"),
        ({"absent": ["devicetaintrules"]}, None),
        ({}, None),
    ],
)
def test_a_kind_that_cannot_be_read_is_missed_by_the_check_that_needs_it(hami_dra, tmp_path, less, check):
    """A cluster that does not serve DeviceTaintRule has none: nothing is missed."""
    with Served(cluster("n1"), **less) as served:
        lines = hami_dra("doctor", "--kubeconfig", served.kubeconfig(tmp_path)).stdout.splitlines()
    in_part = {line.split()[2].rstrip(":") for line in lines if line.startswith("in part")}
    assert in_part - {"version", "webhook", "rights"} == ({check} if check else set())
