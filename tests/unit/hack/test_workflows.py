"""The commands of .github/workflows, each run as it is written, in a clone of the last commit.

Actions (`uses:`) are left out: they prepare the runner. What would reach GitHub, a registry or PyPI is a stand-in that notes its
arguments: docker, gh, `helm push`, `uv publish`. Whole suites (`make unit`, `make e2e`, `.ci/run`) end at a stand-in of make: that
they pass is what `make test` is for.
`make soak`, or: HAMI_DRA_SOAK=1 .venv/bin/pytest tests/unit/hack/test_workflows.py
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from hack.helm import helm
from tests.unit.hack.test_repository import PROJECT, ROOT, WORKFLOWS

OWNER, NAME = PROJECT["urls"]["Repository"].split("/")[-2:]
VERSION = PROJECT["version"]
DIGEST = "sha256:" + "0" * 64
JOBS = {
    f"{path.stem}/{name}": (workflow, job)
    for path in WORKFLOWS
    for workflow in [yaml.safe_load(path.read_text())]
    for name, job in workflow["jobs"].items()
}
SUITES = {
    "ci/unit": "make unit REQUIRE_ALL=",
    "ci/e2e": "make e2e REQUIRE_ALL=1",
    "ci/everything": "make test REQUIRE_ALL=1",
}
EXPRESSIONS = {"github.repository": f"{OWNER}/{NAME}", "github.token": "token", "github.actor": "maintainer"}
NOTE = 'echo "$(basename "$0") $*" >> "$NOTES"\n'
STAND_INS = {
    "docker": NOTE
    + f"""
[ "$*" = "${{*#*imagetools inspect}}" ] || echo {DIGEST}
while [ $# -gt 0 ]; do
  [ "$1" != --metadata-file ] || echo '{{"containerimage.digest": "{DIGEST}"}}' > "$2"
  shift
done
""",
    "gh": NOTE,
    "helm": f'case "$1" in registry | push) {NOTE.strip()} ;; *) exec HELM "$@" ;; esac\n',
    "sudo": '[ "$1" = --preserve-env ] && shift && exec "$@"\n',
}


class Runner:
    """A machine of a job: a clone, a home for its files, and stand-ins in front of the PATH."""

    def __init__(self, folder):
        self.checkout, self.temp, self.programs = folder / "checkout", folder / "temp", folder / "programs"
        subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", self.checkout], check=True)
        self.temp.mkdir()
        self.programs.mkdir()
        self.notes = folder / "notes"
        self.notes.touch()
        for name, text in STAND_INS.items():
            self.stand_in(self.programs / name, text.replace("HELM", str(helm.ensure())))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "HAMI_DRA_"))},
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "NOTES": str(self.notes),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(self.temp / "output"),
            "GITHUB_REF_NAME": f"v{VERSION}",
            "GITHUB_ACTOR": "maintainer",
            "GITHUB_REPOSITORY_OWNER": OWNER,
        }

    def stand_in(self, path, text):
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    def run(self, step, *variables):
        given = {name: _expanded(value) for each in (*variables, step) for name, value in each.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "-e", "-c", _expanded(step["run"])],
            cwd=self.checkout / step.get("working-directory", "."),
            env={**self.environment, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step['run']}\n{done.stdout[-5_000:]}"

    def run_job(self, name):
        workflow, job = JOBS[name]
        for step in job["steps"]:
            if "run" in step:
                self.run(step, workflow, job)
        return self.notes.read_text().splitlines()


def _expanded(text):
    return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: EXPRESSIONS[found[1]], text)


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


def test_every_job_is_run_here():
    assert set(JOBS) == {*SUITES, "ci/lint", "ci/chart", "release/release"}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["ci/lint", "ci/chart"])
def test_the_steps_of_a_job(runner, name):
    assert runner.run_job(name) == []


@pytest.mark.soak
@pytest.mark.parametrize(("name", "called"), SUITES.items())
def test_suites_are_called(runner, name, called):
    runner.stand_in(runner.programs / "make", 'echo "make $* REQUIRE_ALL=$REQUIRE_ALL" >> "$NOTES"\n')
    assert runner.run_job(name) == [called]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_tag_is_released(runner):
    """Each thing is published once, by its name, and is there."""
    subprocess.run(["make", "setup"], cwd=runner.checkout, env=runner.environment, check=True, capture_output=True)
    uv = runner.checkout / ".venv/bin/uv"
    real = uv.rename(uv.with_name("uv-of-the-test"))
    runner.stand_in(uv, f'[ "$1" = publish ] || exec {real} "$@"\n{NOTE}')
    inspected, built, login, pushed, release, published = runner.run_job("release/release")
    image = f"ghcr.io/{OWNER}/{NAME}"
    assert inspected.startswith("docker buildx imagetools inspect docker.io/library/python:")
    assert built.startswith(f"docker buildx build --tag {image}:{VERSION} ")
    assert f"@{DIGEST} " in built
    assert (runner.temp / "output").read_text() == f"digest={DIGEST}\n"
    assert login.startswith("helm registry login ghcr.io ")
    assert pushed == f"helm push dist/hami-dra-chart-{VERSION}.tgz oci://ghcr.io/{OWNER}/charts"
    assert release.startswith(f"gh release create v{VERSION} dist/")
    assert (runner.temp / "notes.md").read_text()
    files = [word for line in (pushed, release, published) for word in line.split() if word.startswith("dist/")]
    assert [file for file in files if not (runner.checkout / file).is_file()] == []
    assert {Path(file).suffix for file in published.split()[-2:]} == {".gz", ".whl"}
    assert f"image: {image}:{VERSION}" in (runner.checkout / "dist/install.yaml").read_text()
