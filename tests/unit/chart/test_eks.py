"""hack/eks, as far as it can be checked without AWS: it parses, nothing is declared in vain, the chart gets values that it has."""

import json
import re
from pathlib import Path

import hcl2
import pytest

from hami_dra.driver.simulated import machine_names

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "hack/eks").glob("*.tf"))
TEXT = "\n".join(path.read_text() for path in FILES)
SCHEMA = json.loads((ROOT / "charts/hami-dra/values.schema.json").read_text())


def blocks(kind):
    """The named blocks of a kind; names come with their quotes."""
    found = {}
    for path in FILES:
        for block in hcl2.loads(path.read_text()).get(kind, []):
            found |= {name.strip('"'): body for name, body in block.items()}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_parses(path):
    assert hcl2.loads(path.read_text())


def test_variables_locals_and_modules_are_declared_and_used():
    assert set(re.findall(r"\bvar\.(\w+)", TEXT)) == set(blocks("variable"))
    (declared,) = hcl2.loads((ROOT / "hack/eks/main.tf").read_text())["locals"]
    assert set(re.findall(r"\blocal\.(\w+)", TEXT)) == {key for key in declared if not key.startswith("__")}
    assert set(re.findall(r"\bmodule\.(\w+)", TEXT)) == set(blocks("module"))


def test_everything_from_elsewhere_has_a_version():
    for name, body in blocks("module").items():
        assert "version" in body, name
    (terraform,) = hcl2.loads((ROOT / "hack/eks/versions.tf").read_text())["terraform"]
    for providers in terraform["required_providers"]:
        for name, body in providers.items():
            assert name.startswith("__") or "version" in body


def test_the_machines_are_those_of_the_reference():
    machines = set(re.findall(r'"(g\w+\.\w+)"', TEXT))
    assert machines == {"g4dn.12xlarge", "g5.12xlarge"}
    assert machines <= set(machine_names())


def test_the_chart_is_this_one_and_gets_values_that_it_has():
    (release,) = blocks("resource").values()
    (body,) = release.values()
    chart = body["chart"].strip('"').replace("${path.module}", str(ROOT / "hack/eks"))
    assert Path(chart).resolve() == ROOT / "charts/hami-dra"
    given = TEXT.partition("yamlencode(")[2].partition("\n  })")[0]
    vendor = SCHEMA["definitions"]["vendor"]["properties"]
    known = {*SCHEMA["properties"], *SCHEMA["properties"]["vendors"]["properties"], *vendor}
    assert set(re.findall(r"^\s*(\w+)\s+?=", given, re.MULTILINE)) <= known
    image = re.search(r"type = object\(\{(.*?)\}\)", TEXT, re.DOTALL)[1]
    assert set(re.findall(r"^\s*(\w+)\s+=", image, re.MULTILINE)) <= set(SCHEMA["properties"]["image"]["properties"])


def test_it_says_that_nobody_has_applied_it():
    assert "**Not applied.**" in (ROOT / "hack/eks/README.md").read_text()
