"""The container image's recipe: what it copies is there, what it pins agrees, and the wheel in it is whole and works.

No container is built here; the commands that the recipe runs are run as they stand.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECIPE = (ROOT / "Dockerfile").read_text()
LINES = [line for line in RECIPE.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
CONSTRAINTS = "hack/image/build-constraints.txt"
UV = str(Path(sys.executable).parent / "uv")
FOLDERS = ("manifests", "deviceclasses", "examples")


def copied():
    """What comes from the build context."""
    for line in LINES:
        if line.startswith("COPY ") and "--from" not in line:
            yield from shlex.split(line)[1:-1]


def test_what_is_copied_exists_and_gets_through_the_ignore_file():
    names = list(copied())
    assert {"hami_dra", "controller", "pyproject.toml", "uv.lock", *FOLDERS} <= set(names)
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    assert let_in == set(names)
    for name in names:
        assert (ROOT / name).exists(), name


def test_all_that_the_wheel_is_made_of_is_copied():
    project = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"^packages = \[(.*)\]$", project, re.MULTILINE)[1]
    included = project.partition("force-include]")[2].partition("\n[")[0]
    wanted = {*re.findall(r'"([^"]+)"', packages), *re.findall(r'^"([^"]+)" =', included, re.MULTILINE)}
    assert wanted <= set(copied())


def test_uv_is_the_one_of_the_makefile():
    (in_recipe,) = re.findall(r"ARG UV_VERSION=(\S+)", RECIPE)
    (in_makefile,) = re.findall(r"^UV_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert in_recipe == in_makefile


def test_everything_is_pinned_by_hash():
    assert "uv sync --frozen" in RECIPE
    assert "--require-hashes" in RECIPE
    entries = re.findall(r"^([\w-]+)==\S+ \\\n    --hash=sha256:", (ROOT / CONSTRAINTS).read_text(), re.MULTILINE)
    assert "hatchling" in entries


def test_one_base_for_both_stages_and_no_root():
    assert [line for line in LINES if line.startswith("FROM")] == [
        "FROM ${PYTHON_IMAGE} AS build",
        "FROM ${PYTHON_IMAGE}",
    ]
    (user,) = [line.split()[1] for line in LINES if line.startswith("USER")]
    values = (ROOT / "charts/hami-dra/values.yaml").read_text()
    assert user == "65532:65532"
    assert "runAsUser: 65532" in values
    assert "runAsNonRoot: true" in values


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A folder with what the recipe copies and nothing else: it is enough."""
    folder = tmp_path_factory.mktemp("context")
    for name in copied():
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


@pytest.fixture(scope="module")
def wheels(context, tmp_path_factory):
    """Two wheels, each built by the recipe's own command."""
    (command,) = re.findall(r"uv build (.*?) --out-dir", RECIPE)
    found = []
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"wheel{number}")
        _run(UV, "build", *shlex.split(command), "--out-dir", folder, cwd=context, SOURCE_DATE_EPOCH="1700000000")
        (wheel,) = folder.glob("*.whl")
        found.append(wheel)
    return found


def _run(*command, cwd=ROOT, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_same_source_gives_the_same_wheel(wheels):
    one, other = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert one == other


def test_the_wheel_holds_all_that_ships_and_nothing_that_does_not(wheels):
    names = set(zipfile.ZipFile(wheels[0]).namelist())
    for folder in FOLDERS:
        ships = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.yaml")}
        assert ships
        assert {f"hami_dra/shipped/{path}" for path in ships} <= names
    assert not [name for name in names if fnmatch(name, "*test*") or name.endswith(".pyc")]
    assert {"LICENSE"} <= {Path(name).name for name in names}


@pytest.fixture(scope="module")
def installed(context, wheels, tmp_path_factory):
    """A fresh environment with the locked dependencies and the wheel, as the recipe makes it."""
    environment = tmp_path_factory.mktemp("image") / "venv"
    syncs = re.findall(r"uv (sync --frozen [^\n&]+)", RECIPE)
    _run(
        UV, *shlex.split(syncs[0]), UV_PROJECT_ENVIRONMENT=str(environment), VIRTUAL_ENV="", UV_PYTHON=sys.executable,
        UV_LINK_MODE="hardlink", cwd=context,
    )  # fmt: skip
    (install,) = re.findall(r"pip --python \S+ (install .*) /wheel/", RECIPE)
    _run(sys.executable, "-m", "pip", "--python", environment, *shlex.split(install), wheels[0])
    return environment


def test_the_installed_wheel_has_no_file_of_the_hour(installed):
    """uv writes one for a wheel on disk, `uv_cache.json`, and then no two images were the same."""
    (listed,) = installed.glob("lib/*/site-packages/hami_dra-*.dist-info")
    assert {path.name for path in listed.iterdir()} - {"licenses"} == {
        "INSTALLER", "METADATA", "RECORD", "REQUESTED", "WHEEL", "direct_url.json", "entry_points.txt",
    }  # fmt: skip


def test_it_starts_outside_the_checkout(installed, tmp_path):
    program = installed / "bin/hami-dra"
    shown = _run(program, "--help", cwd=tmp_path, COLUMNS="120")
    for command in ("controller", "webhook", "driver", "slices", "uninstall"):
        assert command in shown
    assert _run(program, "--version", cwd=tmp_path).startswith("hami-dra ")


def test_it_finds_what_ships_with_it(installed, tmp_path):
    code = (
        "from hami_dra.kube.manifests import shipped; print(len(shipped('manifests')), len(shipped('deviceclasses')))"
    )
    found = _run(installed / "bin/python", "-c", code, cwd=tmp_path).split()
    from hami_dra.kube.manifests import shipped

    assert [int(number) for number in found] == [len(shipped("manifests")), len(shipped("deviceclasses"))]
    assert _run(installed / "bin/python", "-c", "import hami_dra; print(hami_dra.__file__)", cwd=tmp_path).startswith(
        str(installed)
    )
