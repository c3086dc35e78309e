"""Whole manifests through the conversion; the golden file (make generate) shows what users get."""

from copy import deepcopy
from pathlib import Path

import pytest

from controller.webhook.convert import Options
from controller.webhook.files import ConvertRefused, convert_documents
from hack.generate import converted
from hami_dra.kube.documents import Document, read_documents

GOLDEN = Path(__file__).parents[2] / "golden" / "convert"
EXAMPLES = Path(__file__).parents[3] / "examples"
PATTERNS = (
    "a-node-binpack-gpu-binpack",
    "b-node-spread-gpu-binpack",
    "c-node-binpack-gpu-spread",
    "d-node-spread-gpu-spread",
)


def documents(*raws):
    return [Document(Path("in.yaml"), index, raw) for index, raw in enumerate(raws, 1)]


def legacy(name="web", namespace="", **limits):
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    resources = {"limits": {f"nvidia.com/{key}": value for key, value in limits.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }


def kinds_of(result):
    return [f"{raw['kind']}/{raw['metadata']['name']}" for raw in result.documents]


def test_golden():
    assert converted() == (GOLDEN / "output.yaml").read_text()


def test_converting_what_was_converted_changes_nothing():
    once = convert_documents(read_documents([GOLDEN / "input.yaml"])).documents
    twice = convert_documents(documents(*once))
    assert twice.documents == once
    assert twice.warnings == ()


def test_a_template_comes_once_and_before_its_first_user():
    result = convert_documents(documents(legacy("a", gpu=1), legacy("b", gpu=1), legacy("c", gpu=2)))
    names = [entry.split("/")[0] for entry in kinds_of(result)]
    assert names == ["ResourceClaimTemplate", "Pod", "Pod", "ResourceClaimTemplate", "Pod"]


def test_every_namespace_has_its_own():
    result = convert_documents(documents(legacy(gpu=1), legacy(namespace="a", gpu=1), legacy(namespace="b", gpu=1)))
    templates = [raw for raw in result.documents if raw["kind"] == "ResourceClaimTemplate"]
    assert [template["metadata"].get("namespace") for template in templates] == [None, "a", "b"]


def test_templates_in_files_are_the_users_and_pods_are_not_gated():
    result = convert_documents(documents(legacy(gpu=1)), Options(gate=True))
    template, pod = result.documents
    assert list(template["metadata"]["labels"]) == ["hami.io/request-hash"]
    assert "schedulingGates" not in pod["spec"]


def test_containers_that_share_an_anchor_are_converted_one_by_one(tmp_path):
    resources = "&gpu {limits: {nvidia.com/gpu: 1}}"
    containers = f"[{{name: a, resources: {resources}}}, {{name: b, resources: *gpu}}]"
    path = tmp_path / "pod.yaml"
    path.write_text(f"{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{containers: {containers}}}}}")
    _, pod = convert_documents(read_documents([path])).documents
    assert [one["resources"]["claims"][0]["request"] for one in pod["spec"]["containers"]] == ["nvidia-0", "nvidia-1"]


def test_what_was_read_is_not_changed():
    given = documents(legacy(gpu=1))
    before = deepcopy(given[0].raw)
    convert_documents(given)
    assert given[0].raw == before


def test_all_refusals_name_file_document_object_and_fix():
    with pytest.raises(ConvertRefused) as refused:
        convert_documents(documents(legacy("a", gpu="x"), legacy("b", gpu=1), legacy("c", "team", gpu=1, gpumem="1Gi")))
    first, second = refused.value.args
    assert first.startswith('in.yaml, document 1: Pod a: container "main": resources.limits["nvidia.com/gpu"]')
    assert second.startswith('in.yaml, document 3: Pod team/c: container "main": resources.limits["nvidia.com/gpumem"]')
    assert 'write "1024"' in second


@pytest.mark.parametrize(
    "raw",
    [
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": None, "spec": None},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": None}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": []},
        {"kind": "Deployment", "spec": {"template": {"spec": {"containers": 1}}}},
        {},
    ],
)
def test_documents_without_a_pod_template_pass(raw):
    assert convert_documents(documents(raw)).documents == [raw]


# --- examples ------------------------------------------------------------------------------------------------------------


def differences(one, other, path=()):
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in differences(one[key], other[key], (*path, key))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            found
            for index, (a, b) in enumerate(zip(one, other, strict=True))
            for found in differences(a, b, (*path, index))
        ]
    return [] if one == other else ["/".join(map(str, path))]


def example(form, pattern):
    return [document.raw for document in read_documents([EXAMPLES / form / f"{pattern}.yaml"])]


POLICIES = [
    "spec/template/metadata/annotations/hami.io/node-scheduler-policy",
    "spec/template/metadata/annotations/hami.io/gpu-scheduler-policy",
]


@pytest.mark.parametrize("form", [".", "claims"])
def test_the_four_examples_differ_only_in_name_label_and_the_two_annotations(form):
    first = example(form, PATTERNS[0])
    deployment = len(first) - 1
    allowed = ["metadata/name", "spec/selector/matchLabels/app", "spec/template/metadata/labels/app", *POLICIES]
    for pattern in PATTERNS[1:]:
        found = differences(first, example(form, pattern))
        assert set(found) <= {f"{deployment}/{path}" for path in allowed}
        assert any(path.endswith("policy") for path in found)


def test_every_example_has_the_policies_of_its_name():
    for pattern in PATTERNS:
        _, _, node, _, gpu = pattern.split("-")
        wanted = {"hami.io/node-scheduler-policy": node, "hami.io/gpu-scheduler-policy": gpu}
        for form in (".", "claims"):
            assert example(form, pattern)[-1]["spec"]["template"]["metadata"]["annotations"] == wanted
        device_class, _, deployment = example("classes", pattern)
        assert device_class["metadata"]["annotations"] == wanted
        assert "annotations" not in deployment["spec"]["template"]["metadata"]


def test_the_legacy_examples_convert_to_what_the_claim_examples_ask_for():
    for pattern in PATTERNS:
        template, deployment = convert_documents(read_documents([EXAMPLES / f"{pattern}.yaml"])).documents
        written = example("claims", pattern)[1]["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        made = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        assert made["capacity"] == written["capacity"] == {"requests": {"memory": "7500Mi", "cores": "0"}}
        claims = deployment["spec"]["template"]["spec"]["resourceClaims"]
        assert claims == [{"name": "hami", "resourceClaimTemplateName": template["metadata"]["name"]}]


def test_the_claim_examples_need_no_conversion():
    for form in ("claims", "classes"):
        found = read_documents([EXAMPLES / form])
        assert convert_documents(found).documents == [document.raw for document in found]


def test_the_readme_names_every_pattern():
    """Folders: tests/docs/test_examples.py."""
    readme = (EXAMPLES / "README.md").read_text()
    for pattern in PATTERNS:
        assert f"`{pattern}`" in readme
