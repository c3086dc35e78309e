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


def rendered(helm, chart, values):
    (archive,) = (ROOT / "tests/charts").glob(f"{chart}-*.tgz")
    code, out, err = helm("template", "models", archive, "-f", EXAMPLES / values)
    assert code == 0, err
    return [each for each in yaml.safe_load_all(out) if each]


def placements(items):
    """Workload → the nodes and cards of each of its pods."""
    given = [Document(EXAMPLES / "values.yaml", number, each) for number, each in enumerate(items, 1)]
    machines = [ROOT / "resourceslices" / f"{name}.yaml" for name in ("dgx-h100", "g4dn.12xlarge")]
    report = simulate([*read_documents([*machines, ROOT / "deviceclasses"]), *given], SimulationSettings())
    assert report.unplaced == []
    found = {}
    for entry in report.placements:
        for allocated in entry["claims"]:
            workload = entry["pod"].partition("/")[2].rpartition("-")[0]
            cards = [f"{each['pool']}/{each['device']}" for each in allocated["allocation"]["devices"]["results"]]
            found.setdefault(workload, []).append(cards)
    return found


def test_production_stack(helm):
    found = placements(rendered(helm, "vllm-stack", "vllm/production-stack-values.yaml"))
    small = found["models-qwen-small-deployment-vllm"]
    assert len(small) == 2
    assert small[0] == small[1]
    assert len(found["models-embedding-deployment-vllm"]) == 1
    (large,) = found["models-qwen-72b-deployment-vllm"]
    assert len(large) == 4


def test_xinference(helm):
    found = placements(rendered(helm, "xinference", "xinference/values.yaml"))
    assert len(found["models-xinference-supervisor"]) == 1
    first, second = found["models-xinference-worker"]
    assert first != second  # the chart has no annotations for pods, and by default each gets a card of its own
