"""hami-dra simulate as a user types it: what goes to stdout, what to stderr, and the exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, node, part, pod, slices, template, workload

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def file(tmp_path):
    def file(*raws, name="in.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            yaml.safe_dump_all([raw for each in raws for raw in (each if isinstance(each, list) else [each])])
        )
        return path

    return file


SOME = [cluster("n1"), template("t"), pod("fits", "template:t"), claim("c", part(memory="90Gi")), pod("large", "c")]


def test_json_on_stdout_and_nothing_else(hami_dra, file):
    result = hami_dra("simulate", "-f", file(*SOME, {"kind": "ConfigMap"}), "-o", "json")
    document = json.loads(result.stdout)
    assert set(document) == {"placements", "unplaced"}
    (placement,) = document["placements"]
    assert set(placement) == {"pod", "node", "claims", "score"}
    assert set(placement["claims"][0]) == {"name", "namespace", "podClaimName", "allocation"}
    assert placement["score"]["devices"][0]["device"] == "nvidia.hami.io/n1/gpu-0"
    (refused,) = document["unplaced"]
    assert refused == {
        "pod": "default/large",
        "reasons": {"CardInsufficientMemory": 4},
        "message": (
            "no node fits: needs 92160 MiB on one device; the largest has 15360 MiB (Tesla T4), so it never will"
        ),
        "error": "",
        "reason": {
            "kind": "memory",
            "asked": "needs 92160 MiB on one device",
            "best": "the largest has 15360 MiB (Tesla T4)",
            "never": True,
            "request": "",
            "fix": "",
            "code": "CardInsufficientMemory",
        },
    }
    assert result.stderr.startswith("note: ")
    assert result.code == 0


def test_yaml_is_the_same_document(hami_dra, file):
    path = file(*SOME)
    from_json = json.loads(hami_dra("simulate", "-f", path, "-o", "json").stdout)
    from_yaml = yaml.safe_load(hami_dra("simulate", "-f", path, "-o", "yaml").stdout)
    for document in (from_json, from_yaml):
        for entry in document["placements"][0]["claims"]:
            entry["allocation"]["allocationTimestamp"] = "now"
            entry["allocation"]["devices"]["results"][0]["shareID"] = "share"
    assert from_json == from_yaml


@pytest.mark.parametrize(
    ("machine", "limits", "device"),
    [
        ("inf2.48xlarge", {"aws.amazon.com/neuron": 1}, "neuron-11 (neuroncores=2 shares=1)"),
        ("inf2.48xlarge", {"aws.amazon.com/neuroncore": 1}, "neuron-11 (neuroncores=1 shares=1)"),
        ("g4dn.12xlarge", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 7500}, "gpu-0 (cores=0 memory=7500Mi shares=1)"),
    ],
)
def test_a_neuron_device_is_shown_by_its_cores_and_a_card_by_its_parts(hami_dra, file, machine, limits, device):
    """Memory and percent that come with a NeuronCore look like half a device."""
    taken = file(node("n"), slices("n", machine), pod("p", limits=limits))
    shown = hami_dra("simulate", "-f", taken, "-f", ROOT / "deviceclasses").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("default/p ")]
    assert device in line


def test_the_table(hami_dra, file):
    path = file(*SOME, pod("lost", "nowhere"))
    result = hami_dra("simulate", "-f", path)
    lines = result.stdout.splitlines()
    words = [line.split() for line in lines]
    assert lines[0] == "1 pod placed, 2 find no node"
    assert words[2] == ["UNPLACED", "WHY"]
    assert words[3][:2] == ["default/large", "no"]
    assert "spec.resourceClaims[c0]: ResourceClaim default/nowhere does not exist; create it" in lines[4]
    assert words[6] == ["POD", "NODE", "CLAIM", "DEVICES"]
    assert words[7][:4] == ["default/fits", "n1", "c0", "gpu-0"]
    assert not any(line.endswith(" ") for line in lines)
    assert "add --explain large to see why, node by node" in result.stderr
    wide = hami_dra("simulate", "-f", path, "-o", "wide", "--no-headers").stdout.splitlines()
    assert wide[2].split()[:3] == ["default/large", "4", "CardInsufficientMemory"]
    assert wide[5].split()[:5] == ["default/fits", "n1", "c0", "0.00", "/"]
    names = hami_dra("simulate", "-f", path, "-o", "name").stdout.split()
    assert names == ["pod/default/fits", "pod/default/large", "pod/default/lost"]


def test_a_row_names_its_pod_once(hami_dra, file):
    other = pod("p", "template:t")
    other["spec"]["schedulerName"] = "hami-scheduler"
    path = file(cluster("n1"), template("t"), other)
    for words in (("simulate", "-f", path), ("whatif", "-f", path, "--replace")):
        (row,) = [line for line in hami_dra(*words).stdout.splitlines() if line.startswith("default/p ")]
        assert row.count("spec.schedulerName is hami-scheduler") == 1
        assert "Pod default/p" not in row
    lines = hami_dra("explain", "p", "-f", path).stdout.splitlines()
    assert lines[0].startswith("Pod default/p cannot be placed")
    assert lines[1].startswith("spec.schedulerName is hami-scheduler")


def test_no_pod_to_place(hami_dra, file):
    assert hami_dra("simulate", "-f", file(cluster("n1"))).stdout == "no pod to place in the input\n"


def test_exit_status(hami_dra, file):
    path = file(*SOME)
    assert hami_dra("simulate", "-f", path).code == 0
    assert hami_dra("simulate", "-f", path, "--fail-unplaced").code == 1
    assert hami_dra("simulate", "-f", file(cluster("n1")), "--fail-unplaced").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--node-policy", "pack"],
            "hami-dra: --node-policy: 'pack' is not one of binpack, spread, fair-share (did you mean binpack?)\n",
        ),
        (["--device-policy", "pack"], "hami-dra: --device-policy: 'pack' is not one of spread, binpack"),
        (["--device-policy", "spread,first-fit"], "hami-dra: --device-policy: 'spread,first-fit' is not one of"),
        (["--node-policy", ""], "hami-dra: --node-policy: '' is not one of"),
        (["--feature-gates", "DRAUnheardOf=true"], "hami-dra: --feature-gates: unknown feature gate 'DRAUnheardOf'"),
        (["--feature-gates", "DRAAdminAccess"], "hami-dra: --feature-gates: feature gate DRAAdminAccess: '' is not"),
    ],
)
def test_options_that_are_wrong(hami_dra, file, options, message):
    result = hami_dra("simulate", "-f", file(*SOME), *options)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "in.yaml, document 1, line 2: not YAML: "),
        ("kind: Pod\n  metadata: x", "in.yaml, document 1, line 2: not YAML: "),
        ("a: 1\na: 2", "in.yaml, document 1, line 2: not YAML: the key 'a' is given twice"),
        ("just text", "in.yaml, line 1: a str, not an object with apiVersion and kind"),
        (
            "kind: Pod\nmetadata: {name: a}\nspec: {containers: main}",
            "in.yaml, document 1: Pod default/a: spec.containers: a list is wanted, not text",
        ),
    ],
)
def test_files_that_cannot_be_read(hami_dra, tmp_path, text, message):
    (tmp_path / "in.yaml").write_text(text + "\n")
    result = hami_dra("simulate", "-f", tmp_path / "in.yaml", "-o", "json")
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_file_that_is_not_there(hami_dra, tmp_path):
    result = hami_dra("simulate", "-f", tmp_path / "lost.yaml")
    assert (result.code, result.stderr) == (2, f"hami-dra: {tmp_path}/lost.yaml: no such file or folder\n")


def test_without_a_file(hami_dra):
    assert hami_dra("simulate").code == 2


def test_folders_are_read_in_name_order_and_files_in_the_order_given(hami_dra, file, tmp_path):
    file(pod("third"), name="pods/z.yaml")
    file(pod("first"), name="pods/a/x.yml")
    (tmp_path / "pods/b.json").write_text(json.dumps(pod("second")))
    (tmp_path / "pods/notes.txt").write_text("not a manifest: [")
    one = file(pod("zero"), name="one.yaml")
    nodes = file(cluster("n1"), name="nodes.yaml")
    printed = hami_dra("simulate", "-f", one, "-f", tmp_path / "pods", "-f", nodes, "-o", "json").stdout
    names = [entry["pod"].removeprefix("default/") for entry in json.loads(printed)["placements"]]
    assert names == ["zero", "first", "second", "third"]


def test_policies_and_gates_reach_the_decision(hami_dra, file):
    pods = [pod(f"p{number}", "template:t") for number in range(2)]
    path = file(cluster(), template("t"), pods)

    def where(*options):
        found = json.loads(hami_dra("simulate", "-f", path, "-o", "json", *options).stdout)["placements"]
        results = [entry["claims"][0]["allocation"]["devices"]["results"][0] for entry in found]
        return [f"{result['pool']}/{result['device']}" for result in results]

    assert where() == ["n1/gpu-0", "n1/gpu-1"]
    assert where("--device-policy", "binpack") == ["n1/gpu-0", "n1/gpu-0"]
    assert where("--node-policy", "spread") == ["n1/gpu-0", "n2/gpu-0"]
    assert where("--device-policy", "first-fit") == ["n1/gpu-0", "n1/gpu-0"]
    refused = json.loads(
        hami_dra("simulate", "-f", path, "-o", "json", "--feature-gates", "DRAConsumableCapacity=false").stdout
    )["unplaced"]
    assert "needs the feature gate DRAConsumableCapacity" in refused[0]["error"]


def test_the_console_script_and_a_closed_pipe(file):
    """`hami-dra simulate ... | head -1`, with more output than a pipe holds."""
    many_pods = workload("Deployment", "web", {"nodeSelector": {"is": "nowhere"}}, replicas=600)
    path = file(cluster("n1"), many_pods)
    command = [sys.executable, "-m", "controller.cli.main", "simulate", "-f", str(path), "-o", "json"]
    many = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert many.stdout.readline() == "{\n"
    many.stdout.close()
    assert "Traceback" not in many.stderr.read()
    many.stderr.close()
    many.wait()


# --- one decision, explained -----------------------------------------------------------------------------------------


def test_the_decision_on_a_pod_is_explained_with_the_pods_before_it_placed(hami_dra, file):
    """`explain` leaves out other pods that wait, and says so; `simulate --explain` counts them."""
    path = file(cluster("n1"), [template("t", part(memory="12Gi"))], [pod(f"p{n}", "template:t") for n in range(5)])
    simulated = hami_dra("simulate", "-f", path)
    why = "no node fits now: needs 12288 MiB on one device; the most free is 3072 MiB (Tesla T4 on n1)"
    assert why in simulated.stdout
    assert "add --explain p4 to see why" in simulated.stderr
    explained = hami_dra("simulate", "-f", path, "--explain", "p4")
    assert explained.stdout.startswith("Pod default/p4 finds no node (with the pods before it placed)\n" + why)
    assert hami_dra("simulate", "-f", path, "--explain", "default/p3").stdout.startswith("Pod default/p3 goes to n1")
    document = json.loads(hami_dra("simulate", "-f", path, "--explain", "p4", "-o", "json").stdout)
    assert (document["outcome"], document["reason"]["kind"], document["reason"]["never"]) == (
        "refused",
        "memory",
        False,
    )
    alone = hami_dra("explain", "-f", path, "p4").stdout
    assert "no other pod waited" in alone.partition("\n\n")[0]


def test_a_pod_that_is_not_decided_on_cannot_be_explained(hami_dra, file):
    path = file(cluster("n1"), template("t"), pod("p", "template:t"), pod("lost", "template:gone"))
    unknown = hami_dra("simulate", "-f", path, "--explain", "q")
    assert (unknown.code, unknown.stdout) == (2, "")
    assert "no Pod default/q was decided on; there are default/lost, default/p" in unknown.stderr
    lost = hami_dra("simulate", "-f", path, "--explain", "lost")
    assert lost.code == 2
    assert "gone" in lost.stderr


def test_the_choice_that_the_cluster_has_is_named_where_all_of_it_is_taken(hami_dra, file):
    """The last alternative of a list is of a vendor that has no device here."""
    whole = claim("whole", part(memory="16106127360"))
    whole["spec"]["devices"]["requests"][0]["exactly"] |= {"deviceClassName": "nvidia-gpu.hami.io", "count": 4}
    del whole["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    choices = [
        {"name": vendor, "deviceClassName": f"{vendor}.hami.io", "count": 2}
        for vendor in ("nvidia-gpu", "neuron-device")
    ]
    any_of = claim("any", part())
    any_of["spec"]["devices"]["requests"] = [{"name": "card", "firstAvailable": choices}]
    path = file(cluster("n1"), whole, pod("first", "whole"), any_of, pod("second", "any"))
    result = hami_dra("simulate", "-f", path, "-f", ROOT / "deviceclasses", "-o", "json")
    (refused,) = json.loads(result.stdout)["unplaced"]
    assert refused["pod"] == "default/second"
    assert "whole devices" in refused["message"]
    assert not refused["error"]


def test_files_without_any_device_are_said_to_have_none(hami_dra, file):
    result = hami_dra("simulate", "-f", file(template("t"), pod("p", "template:t")))
    assert (
        "no ResourceSlice of a node in the input, so no pod gets a device: add those of a cluster (hami-dra snapshot)"
        in result.stderr
    )
    assert "no ResourceSlice" not in hami_dra("simulate", "-f", file(*SOME)).stderr
