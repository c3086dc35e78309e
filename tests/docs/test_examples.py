"""Every example is run: the commands in its head as they stand there, values of charts as what the chart makes of them."""

import json
import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from controller.insight.simulation import SimulationSettings, simulate
from hami_dra.kube.documents import Document, read_documents
from tests.docs.commands_in_docs import ROOT
from tests.support.commands import Typed
from tests.support.manifests import pod

EXAMPLES = ROOT / "examples"
VALUES = {"examples/vllm/production-stack-values.yaml", "examples/xinference/values.yaml"}
MANIFESTS = sorted(path for path in EXAMPLES.rglob("*.yaml") if str(path.relative_to(ROOT)) not in VALUES)
SHOWN = re.compile(r"^#   (hami-dra .*)$", re.MULTILINE)


def name_of(path):
    return str(path.relative_to(EXAMPLES))


def lines_of(path):
    """The commands in the head of a file. The four patterns have none: examples/README.md shows how to try them."""
    return SHOWN.findall(path.read_text()) or [
        f"hami-dra simulate -f resourceslices -f deviceclasses -f {path.relative_to(ROOT)}"
    ]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "deviceclasses", "resourceslices", "manifests"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_the_commands_in_its_head_place_every_pod(path, checkout, capsys):
    lines = lines_of(path)
    assert str(path.relative_to(ROOT)) in lines[-1]
    with chdir(checkout):
        for line in lines:
            command, _, file = line.partition(" > ")
            program, *words = shlex.split(command)
            last = line is lines[-1]
            result = Typed(capsys)(*words, *(["-o", "json"] if last else []))
            assert (program, result.code) == ("hami-dra", 0), result.stderr
            if file:
                Path(file).write_text(result.stdout)
    placed = json.loads(result.stdout)
    assert placed["unplaced"] == []
    assert placed["placements"]


def test_the_readme_names_every_folder():
    text = (EXAMPLES / "README.md").read_text()
    folders = {path.parent.name for path in EXAMPLES.rglob("*.yaml")} - {"examples"}
    assert {folder for folder in folders if f"({folder}/)" not in text} == set()


# --- values of other projects' charts: what their templates make of these names, as far as cards are concerned -------------


def placements(pods):
    given = [Document(EXAMPLES / "values.yaml", number, each) for number, each in enumerate(pods, 1)]
    machines = [ROOT / "resourceslices" / f"{name}.yaml" for name in ("dgx-h100", "g4dn.12xlarge")]
    report = simulate([*read_documents([*machines, ROOT / "deviceclasses"]), *given], SimulationSettings())
    assert report.unplaced == []
    return {
        entry["pod"].partition("/")[2]: [
            result["device"] for result in entry["claims"][0]["allocation"]["devices"]["results"]
        ]
        for entry in report.placements
    }


def test_production_stack():
    """Chart of vLLM's production-stack, `chart.resources` and the pod's annotations."""
    values = yaml.safe_load((EXAMPLES / "vllm/production-stack-values.yaml").read_text())
    pods = []
    for model in values["servingEngineSpec"]["modelSpec"]:
        limits = {"nvidia.com/gpu": str(model["requestGPU"])}
        for value, resource in (
            ("limitGPUMem", "nvidia.com/gpumem"),
            ("limitGPUMemPercentage", "nvidia.com/gpumem-percentage"),
            ("limitGPUCores", "nvidia.com/gpucores"),
        ):
            if value in model:
                limits[resource] = model[value]
        annotations = model.get("podAnnotations")
        names = [f"{model['name']}-{number}" for number in range(model["replicaCount"])]
        pods += [pod(name, annotations=annotations, limits=limits) for name in names]
    found = placements(pods)
    assert len(found) == 4
    assert found["qwen-small-0"] == found["qwen-small-1"]
    assert len(found["qwen-72b-0"]) == 4


def test_xinference():
    """Chart of Xinference: `resources` of supervisor and worker are passed on."""
    values = yaml.safe_load((EXAMPLES / "xinference/values.yaml").read_text())
    supervisor = values["xinferenceSupervisor"]["supervisor"]["resources"]["limits"]
    worker = values["xinferenceWorker"]["worker"]["resources"]["limits"]
    pods = [pod("supervisor", limits=supervisor)]
    pods += [pod(f"worker-{number}", limits=worker) for number in range(values["config"]["worker_num"])]
    assert len(placements(pods)) == 3
