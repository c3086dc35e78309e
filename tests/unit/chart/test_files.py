"""charts/hami-dra as files: it has no copy of what ships elsewhere, and values, schema, templates and code agree.

What Helm makes of it, on a real API server: tests/e2e/test_chart_on_cluster.py.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from hack.chart_files import COPIED
from hami_dra.kube.manifests import shipped
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.neuron import discovery as neuron
from hami_dra.vendors.nvidia.hami_core import LOCKS
from hami_dra.vendors.nvidia.options import LIBRARY_FOLDER
from hami_dra.vendors.registry import PUBLISHING_VENDORS
from tests.docs.commands_in_docs import options_of

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/hami-dra"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OPTIONS = (CHART / "README.md").read_text().partition("## Options that have no value")[2]
TEMPLATES = {path.name: path.read_text() for path in (CHART / "templates").rglob("*.*")}


def test_version_and_licence_are_those_of_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    assert chart["annotations"]["licenses"] == project["license"]


@pytest.mark.parametrize("name", [*COPIED, "LICENSE"])
def test_what_ships_elsewhere_is_a_copy_and_no_link(name):
    """Links break on Windows, and where only the chart's folder is taken; `make generate` keeps the copies equal."""
    ours, there = CHART / name, ROOT / name
    assert not any(path.is_symlink() for path in (ours, *ours.rglob("*")))
    files = [path for path in (there, *there.rglob("*")) if path.is_file()]
    assert files
    for path in files:
        assert (ours / path.relative_to(there)).read_bytes() == path.read_bytes(), path
    assert len([path for path in (ours, *ours.rglob("*")) if path.is_file()]) == len(files)


def test_chart_yaml_has_what_a_registry_of_charts_shows():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["home"] == project["urls"]["Repository"]
    assert chart["sources"] == [chart["home"]]
    assert chart["maintainers"]
    assert chart["icon"].endswith("main/charts/hami-dra/icon.svg")
    assert "<svg" in (CHART / "icon.svg").read_text()
    assert chart["annotations"]["artifacthub.io/license"] == chart["annotations"]["licenses"]
    for link in yaml.safe_load(chart["annotations"]["artifacthub.io/links"]):
        assert (ROOT / link["url"].removeprefix(f"{chart['home']}/blob/main/")).is_file(), link


def test_no_mapping_is_in_flow_style():
    """Block style is what reviewers of charts read, and what diffs show line by line."""
    flow = re.compile(r"^\s*(?:- )?(?:[\w./\"-]+: )?(?:&\w+ )?\[?\{(?!\{|\})", re.MULTILINE)
    for path in [
        *CHART.glob("values*.yaml"),
        *(CHART / "templates").rglob("*.*"),
        *(ROOT / "manifests").rglob("*.yaml"),
    ]:
        assert flow.findall(path.read_text()) == [], path


def test_the_value_table_has_every_value_with_its_meaning():
    text = (CHART / "README.md").read_text()
    meanings = dict(re.findall(r"^\| `([\w.]+)` \| .* \| (.*) \|$", text, re.MULTILINE))
    for path in leaves(VALUES):
        if path[0] != "vendors":
            assert meanings[".".join(path)].strip(), path
    for name in VALUES["vendors"]["nvidia"]:
        assert f"`{name}`" in text or f"vendors.<name>.{name}" in text


def test_no_rule_of_a_manifest_stands_in_a_template():
    expressions = re.findall(r"expression: (?:>-\n\s+)?(.{25,})", "".join(_texts(ROOT / "manifests")))
    assert len(expressions) > 8
    for name, text in TEMPLATES.items():
        assert [expression for expression in expressions if expression in text] == [], name
    # nor an object of one; what a template makes has a name that no manifest has
    shipped_names = {(raw["kind"], raw["metadata"]["name"]) for raw in shipped("manifests")}
    made = {
        found
        for text in TEMPLATES.values()
        for found in re.findall(r"^kind: (\w+)\nmetadata:\n  name: ([\w.-]+)$", text, re.MULTILINE)
    }
    assert made & shipped_names == set()


def _texts(folder):
    return [path.read_text() for path in sorted(folder.glob("*.yaml"))]


def leaves(values, prefix=()):
    """Paths of values; what stands in free-form objects is one."""
    for key, value in values.items():
        path = (*prefix, key)
        if isinstance(value, dict) and value and _schema_of(path).get("additionalProperties") is False:
            yield from leaves(value, path)
        else:
            yield path


def _schema_of(path):
    found = SCHEMA
    for key in path:
        found = _resolved(found)["properties"][key]
    return _resolved(found)


def _resolved(schema):
    reference = schema.get("$ref")
    return SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else schema


def schema_leaves(schema, prefix=()):
    for key, value in schema["properties"].items():
        inner = _resolved(value)
        if inner.get("type") == "object" and inner.get("additionalProperties") is False:
            yield from schema_leaves(inner, (*prefix, key))
        else:
            yield (*prefix, key)


def test_every_value_has_its_place_in_the_schema():
    paths = list(leaves(VALUES))
    assert len(paths) > 100
    for path in paths:
        _schema_of(path)


def test_every_place_of_the_schema_has_a_value_that_an_operator_can_find():
    of_vendors = {("vendors", vendor) for vendor in VALUES["vendors"]}  # what else stands there is in `driver`
    free = {
        ("global",),
        *(path for path in schema_leaves(SCHEMA) if path[:3] == ("webhook", "certificate", "issuerRef")),
    }
    wanted = {path for path in schema_leaves(SCHEMA) if path[:2] not in of_vendors} - free
    assert {path for path in wanted if not _is_in_values(path)} == set()


def _is_in_values(path):
    found = VALUES
    for key in path:
        if key not in found:
            return False
        found = found[key]
    return True


def test_every_value_is_used():
    everything = "".join(TEMPLATES.values())
    unused = {path for path in leaves(VALUES) if path[0] != "vendors" and not re.search(rf"\.{path[-1]}\b", everything)}
    # `driver` gives the vendors' values their names; `fleet` is written out as it is
    assert unused == set()


def test_templates_ask_for_no_value_that_is_not_there():
    known = {path[0] for path in leaves(VALUES)}
    for name, text in TEMPLATES.items():
        assert set(re.findall(r"\.Values\.(\w+)", text)) - known == set(), name


@pytest.mark.parametrize("program", ["controller", "driver", "webhook"])
def test_every_option_has_a_value_or_is_said_to_go_through_extra_args(program):
    """In a pod, credentials are the account's, and the port is what probes and Services go by."""
    fixed = {"--kubeconfig", "--host", "--port"}
    set_here = {*re.findall(r"- (--[a-z-]+)", TEMPLATES[f"{program}.yaml"] + TEMPLATES["_helpers.tpl"])}
    (row,) = re.findall(rf"^\| `{program}\.extraArgs`.* \| (.*) \|$", OPTIONS, re.MULTILINE)
    listed = set(re.findall(r"`(--[a-z-]+)`", row))
    options = [{*names} for names in options_of(program)]
    assert (set_here | listed) - set().union(*options) == set()
    assert [names for names in options if not names & (set_here | listed | fixed)] == []
    assert [names for names in options if names & set_here and names & listed] == []


def test_all_vendors_that_publish_are_there_and_none_is_on_by_default():
    assert set(VALUES["vendors"]) == {vendor.name for vendor in PUBLISHING_VENDORS}
    assert set(SCHEMA["properties"]["vendors"]["properties"]) == set(VALUES["vendors"])
    assert {own["enabled"] for own in VALUES["vendors"].values()} == {False}
    assert VALUES["simulatedFleet"]["enabled"] is False


def mounted(vendor):
    return {each["path"]: each["readOnly"] for each in VALUES["vendors"][vendor]["hostPaths"]}


def test_the_driver_has_the_folders_of_the_node_that_it_makes_folders_in():
    """The folder of a simulated node's driver is its own; on a node it must be the node's, under the same path."""
    assert f'(dict "path" "{LOCKS}" "readOnly" false' in TEMPLATES["driver.yaml"]  # with lockFolder: host
    assert mounted("nvidia")[f"{LIBRARY_FOLDER.default}/vgpu"] is False


@pytest.mark.parametrize(
    "backend", [metax, kunlunxin, neuron, enflame], ids=lambda module: module.__name__.split(".")[-2]
)
def test_the_driver_has_the_tool_of_the_vendor(backend):
    folders = mounted(backend.__name__.split(".")[-2])
    assert any(where.is_relative_to(path) for where in backend.TOOL.folders for path in folders)


def test_a_class_is_known_by_its_vendor():
    """The template takes the letters that the name of a class begins with for the vendor."""
    for path in (ROOT / "deviceclasses").glob("*.yaml"):
        assert re.match("[a-z]+", path.name)[0] in VALUES["vendors"], path.name


def test_documents_name_values_that_there_are():
    text = (ROOT / "docs/install.md").read_text().partition("## With Helm")[2].partition("\n## ")[0]
    named = {name for name in re.findall(r"`([\w.]+)[`=]", text) if name.partition(".")[0] in VALUES and "." in name}
    assert len(named) > 12
    for name in named:
        _schema_of(tuple(name.split(".")))


def test_a_first_installation_converts_nothing_unasked():
    assert VALUES["webhook"]["optIn"] is True
    assert "hami.io/webhook=enabled" in TEMPLATES["NOTES.txt"]


def test_production_values_leave_the_namespace_to_the_administrator():
    """Helm keeps the release in it, so it must be there before an installation; Helm 3 does not take over one that is."""
    text = (CHART / "values-production.yaml").read_text()
    assert "namespace" not in yaml.safe_load(text)
    assert "kubectl label namespace hami-dra-system pod-security.kubernetes.io/enforce=privileged" in text
