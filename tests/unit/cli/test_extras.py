"""Extras: the bare wheel has all that its commands need to start, and says which extra others need."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controller.cli.extras import EXTRAS, missing_extra

ROOT = Path(__file__).resolve().parents[3]
UV = str(Path(sys.executable).parent / "uv")
DISTRIBUTIONS = {"google.protobuf": "protobuf", "grpc": "grpcio", "pynvml": "nvidia-ml-py"}
"""Modules that have another name than the package that has them."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement):
    return re.split(r"[<>=;\[ ]", requirement)[0]


def test_every_package_of_an_extra_has_its_module():
    declared = {
        name_of(requirement): extra
        for extra, requirements in PROJECT["optional-dependencies"].items()
        for requirement in requirements
    }
    assert {DISTRIBUTIONS.get(module, module): extra for module, extra in EXTRAS.items()} == declared


def test_what_is_installed_is_not_missing():
    assert [missing_extra(module) for module in EXTRAS] == [""] * len(EXTRAS)
    assert missing_extra("grpc_that_nobody_has.aio") == ""


# --- the wheel alone -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hami_dra(tmp_path_factory):
    """Run the command of a virtual environment with the wheel, and nothing but what it requires."""
    folder = tmp_path_factory.mktemp("bare")

    def uv(*arguments):
        done = subprocess.run([UV, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    uv("build", "--wheel", "--quiet", "--out-dir", folder / "dist")
    (folder / "locked").write_text(uv("export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes", "--quiet"))
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    (wheel,) = (folder / "dist").glob("*.whl")
    python = folder / "venv/bin/python"
    uv("pip", "install", "--quiet", "--python", python, "--constraint", folder / "locked", wheel)
    (folder / "config").write_text(
        "{current-context: a, contexts: [{name: a, context: {cluster: c}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}"
    )

    def run(*arguments):
        command = [str(folder / "venv/bin/hami-dra"), *arguments]
        environment = {"PATH": "/usr/bin:/bin", "KUBECONFIG": str(folder / "config"), "HOME": str(folder)}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    return run


CLUSTER = ("-f", "resourceslices", "-f", "deviceclasses")
PODS = ("-f", "examples/d-node-spread-gpu-spread.yaml")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("--help",), "simulate"),
        (("driver", "--help"), "--node"),
        (("simulate", *CLUSTER, *PODS), "default/demo-d-node-spread-gpu-spread-3"),
        (("status", *CLUSTER), "nvidia"),
        (("explain", *CLUSTER, *PODS, "demo-d-node-spread-gpu-spread-3"), "dgx-1"),
        (("doctor", *CLUSTER), "no errors"),
        (("convert", *PODS), "ResourceClaimTemplate"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else value,
)
def test_commands_on_files_need_no_extra(hami_dra, arguments, shown):
    done = hami_dra(*arguments)
    assert (done.returncode, shown in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("driver", "--node", "a"), "driver"),
        (("webhook",), "controller"),
        (("controller", "--dashboard-bind", "127.0.0.1:0"), "dashboard"),
    ],
)
def test_a_program_names_the_extra_that_it_needs(hami_dra, arguments, extra):
    done = hami_dra(*arguments)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(
        f"this command needs the extra {extra!r}, which is not installed: pip install 'hami-dra[{extra}]'"
    )
