"""Files that hosts of repositories read: workflows that hold what actionlint asks, forms, and one address everywhere."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from hack.actionlint.actionlint import ACTIONLINT
from hack.controlplane.build import BuildError

ROOT = Path(__file__).resolve().parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_workflows_are_valid():
    try:
        program = ACTIONLINT.ensure()
    except BuildError as error:
        if os.environ.get("REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"NO ACTIONLINT, NOT TESTED: {error}")
    shellcheck = Path(sys.executable).parent / "shellcheck"
    command = [program, "-no-color", "-shellcheck", shellcheck, "-pyflakes=", *WORKFLOWS]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert len(WORKFLOWS) > 1


def test_actions_are_pinned_by_commit_with_their_version():
    used = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_every_target_of_make_in_a_workflow_exists():
    targets = set(re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for path in WORKFLOWS for name in re.findall(r"(?:run:|\|) *make ([\w-]+)", path.read_text())}
    assert {"lint", "unit", "e2e", "release"} <= called <= targets


def test_unit_tests_run_on_every_python_that_is_promised():
    workflow = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text())
    promised = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert workflow["jobs"]["unit"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("path", sorted(GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")), ids=lambda path: path.stem)
def test_forms_have_what_the_host_asks(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    assert {each["type"] for each in form["body"]} <= {"textarea", "input", "dropdown", "checkboxes", "markdown"}
    ids = [each["id"] for each in form["body"]]
    assert len(ids) == len(set(ids))


def test_one_address_everywhere():
    """The repository's address is that of pyproject.toml."""
    home = PROJECT["urls"]["Repository"]
    names = "/".join(home.split("/")[-2:])
    paths = [*ROOT.glob("*.md"), *GITHUB.rglob("*.*ml"), ROOT / "pyproject.toml", *(ROOT / "charts").rglob("*.yaml")]
    other = {
        f"{path.relative_to(ROOT)}: {found}"
        for path in paths
        for found in re.findall(r"github(?:usercontent)?\.com/([\w-]+/hami-dra)\b", path.read_text())
        if found != names
    }
    assert other == set()


def test_the_readme_says_the_status_first_and_stays_short():
    text = (ROOT / "README.md").read_text()
    assert "**Status: alpha. Never run on production GPUs**" in text.partition("\n## ")[0]
    assert len(text.splitlines()) <= 120


def test_the_changelog_has_what_is_to_come_and_this_version():
    sections = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[:2] == ["Unreleased", PROJECT["version"]]
