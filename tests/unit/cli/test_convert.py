"""hami-dra convert as a user types it."""

import json
from pathlib import Path

import pytest
import yaml

from hami_dra.kube.documents import read_documents
from tests.support.commands import Typed

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/golden/convert"
LEGACY = (
    "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main, resources: {limits: %s}}]}}\n"
)


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


def test_what_is_printed_is_the_golden_file(hami_dra):
    result = hami_dra("convert", "-f", GOLDEN / "input.yaml")
    golden = (GOLDEN / "output.yaml").read_text().splitlines(keepends=True)
    assert result.stdout == "".join(line for line in golden if not line.startswith("#"))
    warnings = [line.removeprefix("# warning: ") for line in golden if line.startswith("# warning: ")]
    assert result.stderr == "".join(f"note: {GOLDEN}/{warning}" for warning in warnings)


def test_json_is_one_list_of_the_same(hami_dra):
    path = GOLDEN / "input.yaml"
    printed = json.loads(hami_dra("convert", "-f", path, "-o", "json").stdout)
    assert (printed["apiVersion"], printed["kind"]) == ("v1", "List")
    assert printed["items"] == list(yaml.safe_load_all(hami_dra("convert", "-f", path).stdout))


def test_what_was_converted_can_be_simulated(hami_dra, tmp_path):
    legacy = ROOT / "examples/d-node-spread-gpu-spread.yaml"
    converted = tmp_path / "converted.yaml"
    converted.write_text(hami_dra("convert", "-f", legacy).stdout)
    assert [document.raw["kind"] for document in read_documents([converted])] == ["ResourceClaimTemplate", "Deployment"]
    given = ["-f", ROOT / "resourceslices", "-f", ROOT / "deviceclasses", "-o", "json"]
    before, after = (
        json.loads(hami_dra("simulate", *given, "-f", path).stdout)["placements"] for path in (legacy, converted)
    )
    assert [(entry["pod"], entry["node"], entry["score"]) for entry in before] == [
        (entry["pod"], entry["node"], entry["score"]) for entry in after
    ]


def test_what_cannot_be_converted_ends_it_with_all_problems_and_no_output(hami_dra, tmp_path):
    path = tmp_path / "in.yaml"
    path.write_text(
        LEGACY % "{nvidia.com/gpu: many}" + "---\n" + LEGACY % "{nvidia.com/gpu: 1, nvidia.com/gpumem: 8Gi}"
    )
    result = hami_dra("convert", "-f", path)
    assert (result.code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith(
        f'hami-dra: {path}, document 1: Pod a: container "main": resources.limits["nvidia.com/gpu"]'
    )
    assert second.startswith(f"{path}, document 2: Pod a: ")
    assert second.endswith('write "8192" instead')


def test_a_file_that_cannot_be_read(hami_dra, tmp_path):
    (tmp_path / "in.yaml").write_text("a: [\n")
    result = hami_dra("convert", "-f", tmp_path / "in.yaml")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hami-dra: {tmp_path}/in.yaml, document 1, line 2: not YAML")


def test_the_runtime_class_of_a_vendor_is_written_into_the_pod(hami_dra, tmp_path):
    path = tmp_path / "in.yaml"
    path.write_text(LEGACY % "{nvidia.com/gpu: 1}")
    printed = list(yaml.safe_load_all(hami_dra("convert", "-f", path, "--runtime-class", "nvidia=nvidia").stdout))
    assert printed[-1]["spec"]["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nvidia"], "'nvidia' is not VENDOR=NAME with a vendor of nvidia, metax"),
        (["amd=rocm"], "'amd=rocm' is not VENDOR=NAME"),
        (["nvidia=Not A Name"], "and the name of a RuntimeClass"),
        (["nvidia=a", "nvidia=b"], "nvidia has two, a and b; a pod has one"),
    ],
)
def test_a_runtime_class_that_is_none_is_refused(hami_dra, tmp_path, options, message):
    path = tmp_path / "in.yaml"
    path.write_text(LEGACY % "{nvidia.com/gpu: 1}")
    result = hami_dra("convert", "-f", path, *(word for each in options for word in ("--runtime-class", each)))
    assert (result.code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())
