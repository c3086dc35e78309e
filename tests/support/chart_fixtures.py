"""Fixtures of the tests that use the chart: Helm, and the chart installed on a control plane of a test's own.

Loaded as a plugin by tests/conftest.py.
"""

import json
import os
import subprocess

import pytest
import yaml

from hack.controlplane import build
from hack.helm import helm as helm_build
from hami_dra.api import names
from tests.e2e.chart_story import ROOT, Story, helm_home

CHART = ROOT / "charts/hami-dra"
SELF = {"certificate": {"from": "self"}}


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """`helm(*arguments)` → (exit code, stdout, stderr), in a home of its own."""
    try:
        program = helm_build.ensure()
    except build.BuildError as error:
        message = f"NO HELM, NOT TESTED: {error}"
        pytest.fail(message) if os.environ.get("REQUIRE_ALL") == "1" else pytest.skip(message)
    home = tmp_path_factory.mktemp("helm")

    def run(*arguments):
        command = [str(part) for part in (program, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=helm_home(home), cwd=ROOT)
        return done.returncode, done.stdout, done.stderr

    run.program, run.home = program, home
    return run


@pytest.fixture
def render(helm, tmp_path):
    """`render(values)` → the objects."""

    def rendered(values, *options):
        code, out, err = template(helm, tmp_path, values, *options)
        assert code == 0, err
        return [raw for raw in yaml.safe_load_all(out) if raw]

    return rendered


def template(helm, folder, values, *options, command=("template", names.MANAGED_BY)):
    """The result of `helm template` (or another `command`) with these values."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))
    return helm(
        *command,
        CHART,
        "--namespace",
        names.SYSTEM_NAMESPACE,
        "--kube-version",
        build.DEFAULT_VERSION,
        "-f",
        file,
        *options,
    )


@pytest.fixture
def story(make_control_plane, helm, tmp_path, render):
    """See chart_story.py."""
    one = Story(make_control_plane(), helm, tmp_path, render({"simulatedFleet": {"enabled": True}, "webhook": SELF}))
    yield one
    one.close()
