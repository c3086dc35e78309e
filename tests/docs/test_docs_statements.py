"""What the documents state, held against the code: codes, events, metrics, names, conversions, numbers, manifests."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from controller.assessment import Fault
from controller.insight.manifests import gather
from controller.insight.simulation import SimulationSettings, simulate
from controller.reasons import catalogue
from controller.reconcile.runtime import messages
from controller.reconcile.runtime.events import CONTROLLER
from controller.scoring.policies import DevicePolicy, Policies
from controller.webhook.files import convert_documents
from hami_dra.api import names
from hami_dra.kube.documents import Document, read_documents
from hami_dra.vendors import device_codes
from hami_dra.vendors.profiles import FOREIGN
from hami_dra.vendors.registry import LEGACY_VENDORS, VENDORS
from tests.docs.commands_in_docs import DOCUMENTS, ROOT, blocks
from tests.support.manifests import cluster, pod, simulated, template

TEXT = {path.name: path.read_text() for path in DOCUMENTS if path.parent in {ROOT / "docs", ROOT / "docs/design"}}
ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)


def rows(text, heading):
    """The cells of the table below a heading, without its head."""
    section = text.partition(heading)[2]
    table = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in ROW.findall(table)][1:]


def coded(text):
    return set(re.findall(r"`([^`]+)`", text))


# --- troubleshooting -------------------------------------------------------------------------------------------------


@cache
def read_attributes():
    """(module, attribute) of all `module.attribute` in the product."""
    found = set()
    for folder in ("hami_dra", "controller"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name in {"device_codes.py", "catalogue.py"}:  # lists of all, in use or not
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    found.add((node.value.id, node.attr))
    return found


def used_names(module):
    """Attributes of `names` (or another module) that the product reads."""
    return {attribute for read, attribute in read_attributes() if read == module}


def test_every_reason_code_in_use_is_explained():
    codes = {name: code for name, code in vars(device_codes).items() if isinstance(code, str) and name.isupper()}
    in_use = {code for name, code in codes.items() if name in used_names("device_codes")}
    in_use |= {getattr(catalogue, name) for name in used_names("catalogue") if name.startswith("NODE_")}
    explained = {cell for row in rows(TEXT["troubleshooting.md"], "## Reason codes") for cell in coded(row[0])}
    assert explained == in_use


def test_every_event_is_explained():
    reasons = {
        value
        for name, value in vars(messages).items()
        if name.isupper() and isinstance(value, str) and value[0].isupper() and name not in {"NORMAL", "WARNING"}
    }
    in_use = {value for value in reasons if any(getattr(messages, name) == value for name in used_in_messages())}
    in_use |= {fault.value for fault in Fault if fault and fault.name in used_names("Fault")}
    text = TEXT["troubleshooting.md"]
    explained = {
        cell
        for heading in ("## Events of a pod", "## Events of claims and rules")
        for row in rows(text, heading)
        for cell in coded(row[0])
    }
    assert explained == in_use


@cache
def used_in_messages():
    """Constants of `messages` that something tells: in there, or by name elsewhere."""
    source = (ROOT / "controller/reconcile/runtime/messages.py").read_text()
    inside = set(re.findall(r"\b([A-Z_]{4,})\b", source.partition("def placed")[2]))
    imported = set()
    for path in (ROOT / "controller/reconcile").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "controller.reconcile.runtime.messages":
                imported |= {alias.name for alias in node.names}
    constants = {name for name in vars(messages) if name.isupper()}
    return (inside | imported | used_names("messages")) & constants


# --- legacy ----------------------------------------------------------------------------------------------------------


def test_every_legacy_name_is_explained():
    """Those of NVIDIA, which the migration page is about; each vendor has a page of its own."""
    (nvidia,) = (vendor for vendor in LEGACY_VENDORS if vendor.name == "nvidia")
    assert {cell for row in rows(TEXT["legacy.md"], "## Names") for cell in coded(row[0])} <= set(nvidia.resources)


@pytest.mark.parametrize("vendor", LEGACY_VENDORS, ids=lambda vendor: vendor.name)
def test_every_resource_name_is_on_the_page_of_its_vendor(vendor):
    page = (ROOT / "docs/vendors" / f"{vendor.name}.md").read_text()
    page += TEXT["legacy.md"] if vendor.name == "nvidia" else ""
    assert {name for name in vendor.resources if f"`{name}" not in page} == set()


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_every_annotation_is_on_the_page_of_its_vendor(vendor):
    page = (ROOT / "docs/vendors" / f"{vendor.name}.md").read_text()
    assert {name for name in vendor.annotations if f"`{name}" not in page} == set()


CONVERSIONS = [[cell.strip("`") for cell in row] for row in rows(TEXT["legacy.md"], "## Conversion")]


@pytest.mark.parametrize(("given", "becomes"), CONVERSIONS)
def test_conversions_are_as_the_table_says(given, becomes):
    raw = pod("a", limits=yaml.safe_load(f"{{{given}}}"))
    made = convert_documents([Document(Path("a.yaml"), 1, raw)]).documents[0]["spec"]["spec"]["devices"]
    (request,) = made["requests"]
    exactly = request["exactly"]
    found = {"class": exactly["deviceClassName"], "count": exactly["count"], **exactly["capacity"]["requests"]}
    for config in made.get("config", ()):
        parameters = config["opaque"]["parameters"]
        found["memoryPercent"] = parameters["memoryPercent"]
    assert found == yaml.safe_load(becomes)


# --- policies --------------------------------------------------------------------------------------------------------


def test_every_policy_is_in_the_table():
    table = rows(TEXT["scoring.md"], "## How devices are chosen")
    assert {cell for row in table for cell in coded(row[0])} - {"binpack,numa"} == set(names.DEVICE_POLICIES)
    annotations = {row[0].strip("`"): row for row in rows(TEXT["policies.md"], "## Annotations")}
    assert set(annotations) == {names.NODE_POLICY, names.DEVICE_POLICY, names.SCORING_WEIGHTS, names.PACKING_WEIGHTS}
    assert coded(annotations[names.NODE_POLICY][1]) == set(names.NODE_POLICIES)
    assert coded(annotations[names.DEVICE_POLICY][1]) == set(names.DEVICE_POLICIES)
    assert annotations[names.NODE_POLICY][2].strip("`") == Policies().node_policy
    assert annotations[names.DEVICE_POLICY][2].strip("`") == Policies().device_policy.name


def test_worked_numbers():
    packed = Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",)))
    pods = [pod(f"p{number}", "template:t") for number in range(4)]
    found = [
        (f"{entry['score']['node']:.2f}", f"{entry['score']['devices'][0]['score']:.2f}")
        for entry in simulated(cluster(), template("t"), pods, policies=packed).placements
    ]
    stated = [
        (row[1].partition(", ")[0].split("= ")[-1], row[3].split("= ")[-1])
        for row in rows(TEXT["scoring.md"], "### Worked numbers")
    ]
    assert stated == found


def test_formulas_in_the_worked_numbers():
    found = re.findall(r"(10 \N{MULTIPLICATION SIGN} \([^)]*\)) =? ?([\d.]+)", TEXT["scoring.md"])
    assert len(found) > 3
    for formula, value in found:
        result = eval(formula.replace("\N{MULTIPLICATION SIGN}", "*"))  # arithmetic of our own document
        assert f"{result:.2f}" == value or result == pytest.approx(float(value)), formula


# --- claims ----------------------------------------------------------------------------------------------------------


def test_every_known_driver_is_listed():
    listed = {cell for row in rows(TEXT["claims.md"], "## Other drivers") for cell in coded(row[0])}
    assert listed == {profile.driver for profile in FOREIGN}


def test_every_class_is_listed():
    listed = {row[0].strip("`") for row in rows(TEXT["claims.md"], "## Classes")}
    assert listed == {path.stem for path in (ROOT / "deviceclasses").glob("*.yaml")}


def test_what_gates_a_pod_is_told():
    policy = (ROOT / "manifests/gate-policy.yaml").read_text()
    reported = next(line for line in re.split(r"\n(?:- |\n)", TEXT["claims.md"]) if "(the gate)" in line)
    assert set(re.findall(r"'(hami\.io/[\w-]+)'", policy)) - {names.GATE} == set(
        re.findall(r"hami\.io/[\w-]+", reported)
    )


YAML = [
    (path, number, text)
    for path in DOCUMENTS
    for number, (language, text) in enumerate(blocks(path), 1)
    if language == "yaml" and "kind:" in text and "kind: Fleet" not in text
]


@pytest.mark.parametrize(
    ("path", "number", "text"), YAML, ids=lambda value: getattr(value, "name", None) or str(value)[:9]
)
def test_manifests_in_documents_are_placed(path, number, text, tmp_path):
    file = tmp_path / "in.yaml"
    file.write_text(text)
    given = [ROOT / "resourceslices", ROOT / "deviceclasses", file]
    assert gather(read_documents([file])).items
    report = simulate(read_documents(given), SimulationSettings())
    assert report.unplaced == []
    assert [note for note in report.notes if "assumed" not in note] == []


# --- the rest --------------------------------------------------------------------------------------------------------


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    extras = [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    wanted = [
        *project["project"]["dependencies"],
        *extras,
        *groups["dev"],
        *groups["e2e"],
        *project["build-system"]["requires"],
    ]
    named = {re.split(r"[<>=;\[ ]", entry)[0] for entry in wanted}
    assert named - coded(TEXT["libraries.md"]) == set()


def test_every_manifest_is_listed():
    listed = {cell for row in rows(TEXT["install.md"], "## What is installed") for cell in coded(row[0])}
    assert listed == {path.name for path in (ROOT / "manifests").glob("*.yaml")}


def test_every_value_of_the_chart_that_is_named_exists():
    values = yaml.safe_load((ROOT / "charts/hami-dra/values.yaml").read_text())
    for row in rows(TEXT["install.md"], "## With Helm"):
        for name in coded(row[2]):
            assert is_value(values, name.split(".")), name


def is_value(values, path):
    """What stands below `driver` may stand below a vendor, too."""
    if path[0] == "vendors":
        values, path = values["driver"] | values["vendors"][path[1]], path[2:]
    elif path[0] in values["driver"]:
        values = values["driver"]
    for key in path:
        if key not in values:
            return False
        values = values[key]
    return True


_OF_HAMI_ALONE = (
    *("vgpu-devices-allocated", "vgpu-devices-to-allocate", "vgpu-node", "bind-phase", "bind-time"),
    *("node-handshake", "node-nvidia-register"),
)
"""What HAMi writes and hami-dra does not: the migration page says what to read in its place."""


def test_every_annotation_and_label_that_is_named_exists():
    known = {value for name, value in vars(names).items() if isinstance(value, str) and value.startswith("hami.io/")}
    known |= {"hami.io/v1alpha1", CONTROLLER}
    known |= {f"hami.io/{name}" for name in _OF_HAMI_ALONE}
    for name, text in TEXT.items():
        assert set(re.findall(r"(?<![\w.])hami\.io/[\w-]+", text)) - known == set(), name


def test_the_layers_are_those_that_are_checked():
    contract = next(
        each
        for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    )
    checked = [{package.strip(" ()") for package in layer.split("|")} for layer in contract["layers"]]
    picture = next(text for language, text in blocks(ROOT / "docs/design/architecture.md") if not language)
    drawn = [re.split(r"\s{2,}", line)[0] for line in picture.splitlines() if not line.startswith(" ")]
    assert [{package.strip() for package in line.split("|")} for line in drawn] == checked


def test_every_package_is_in_the_picture():
    packages = {
        f"{top}.{path.name}" for top in ("hami_dra", "controller") for path in (ROOT / top).iterdir() if path.is_dir()
    }
    packages = {package for package in packages if any((ROOT / package.replace(".", "/")).glob("*.py"))}
    assert {package for package in packages if package not in TEXT["architecture.md"]} == set()


def test_the_chinese_page_has_every_vendor_and_name():
    text = (ROOT / "docs/zh/README.md").read_text()
    for vendor in LEGACY_VENDORS:
        assert f"(../vendors/{vendor.name}.md)" in text
        own = {name for name in vendor.resources if not name.startswith("volcano.sh/")} - {"nvidia.com/priority"}
        assert {name for name in own if f"`{name}`" not in text} == set()
