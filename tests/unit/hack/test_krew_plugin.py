"""The krew plugin: a manifest that krew accepts, and an archive that runs this version."""

import copy
import hashlib
import io
import subprocess
import tarfile

import pytest
import yaml

from hack import krew_plugin
from hack.release import version

RELEASES = "https://github.com/example/hami-dra/releases/download"


def test_the_manifest_is_valid_and_names_the_archive():
    found = yaml.safe_load(krew_plugin.manifest(version(), RELEASES))
    assert list(krew_plugin.problems("hami", found)) == []
    (platform,) = found["spec"]["platforms"]
    assert list(krew_plugin.archive_problems(platform, krew_plugin.archive(version()))) == []
    assert platform["uri"] == f"{RELEASES}/v{version()}/kubectl-hami-{version()}.tar.gz"
    assert platform["sha256"] == hashlib.sha256(krew_plugin.archive(version())).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(krew_plugin.archive(version()))) as archive:
        assert {platform["bin"], *(each["from"] for each in platform["files"])} <= {*archive.getnames()}
        assert archive.getmember(platform["bin"]).mode == 0o755
    assert found["spec"]["homepage"] == "https://github.com/example/hami-dra"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("kind",), "Plugins", "apiVersion or kind"),
        (("metadata", "name"), "x", "metadata.name"),
        (("spec", "version"), "0.1.0", "spec.version"),
        (("spec", "shortDescription"), "a\nb", "spec.shortDescription"),
        (("spec", "platforms"), [], "spec.platforms"),
        (("spec", "platforms", 0, "sha256"), "ABC", "spec.platforms[0].sha256"),
        (("spec", "platforms", 0, "bin"), "", "spec.platforms[0].bin"),
        (("spec", "platforms", 0, "files"), [], "spec.platforms[0].files"),
        (("spec", "platforms", 0, "sha"), "a", "platform has no field sha"),
        (("spec", "shortdescription"), "a", "spec has no field shortdescription"),
        (("spec", "platforms", 0, "selector"), {"matchLabels": {"gpu": "a"}}, "spec.platforms[0].selector"),
        (("spec", "platforms", 0, "selector"), {"matchLabels": {}}, "spec.platforms[0].selector"),
        (
            ("spec", "platforms", 0, "selector"),
            {"matchLabels": {"os": "plan9"}},
            "spec.platforms[0].selector: selects no platform that krew supports",
        ),
        (("spec", "version"), "v01.0.0", "spec.version"),
        (("spec", "caveats"), "a b " * 30, "spec.caveats: a line is longer than 80 characters"),
        (("spec", "shortDescription"), "a b " * 18, "spec.shortDescription: a line is longer than 70 characters"),
    ],
)
def test_what_krew_refuses_is_named(path, value, problem):
    plugin = copy.deepcopy(yaml.safe_load(krew_plugin.manifest("1.2.3", RELEASES)))
    place = plugin
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert list(krew_plugin.problems("hami", plugin)) == [problem]


def test_a_platform_may_be_selected_once():
    plugin = yaml.safe_load(krew_plugin.manifest("1.2.3", RELEASES))
    arm = {**plugin["spec"]["platforms"][0], "selector": {"matchLabels": {"os": "linux", "arch": "arm64"}}}
    plugin["spec"]["platforms"].append(arm)
    problem = "spec.platforms[1].selector: linux/arm64 is selected twice"
    assert list(krew_plugin.problems("hami", plugin)) == [problem]


def test_names_that_windows_reserves_are_refused():
    plugin = yaml.safe_load(krew_plugin.manifest("1.2.3", RELEASES))
    plugin["metadata"]["name"] = "con"
    assert list(krew_plugin.problems("con", plugin)) == ["metadata.name"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sha256": "0" * 64}, "sha256 is not that of the archive"),
        ({"bin": "hami"}, "bin: hami is not installed, or not executable"),
        ({"bin": "LICENSE"}, "bin: LICENSE is not installed, or not executable"),
        ({"files": [{"from": "kubectl-hami", "to": "."}, {"from": "x", "to": "."}]}, "files: x is not in the archive"),
        (
            {"files": [{"from": "kubectl-hami", "to": "."}, {"from": "LICENSE", "to": "./x"}]},
            "files: ./x is not a plain relative path",
        ),
    ],
)
def test_what_krew_cannot_install_is_named(change, problem):
    (platform,) = yaml.safe_load(krew_plugin.manifest("1.2.3", RELEASES))["spec"]["platforms"]
    assert list(krew_plugin.archive_problems({**platform, **change}, krew_plugin.archive("1.2.3"))) == [problem]


def test_the_launcher_runs_this_version_by_uv_or_says_what_it_needs(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(krew_plugin.archive("1.2.3"))) as archive:
        assert archive.getnames() == ["LICENSE", "kubectl-hami"]
        archive.extractall(tmp_path, filter="data")
    launcher = tmp_path / "kubectl-hami"
    alone = subprocess.run(["/bin/sh", launcher, "status"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)  # fmt: skip
    assert alone.returncode == 2
    assert "needs uv or pipx" in alone.stderr
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$@"\n')
    uv.chmod(0o755)
    ran = subprocess.run(["/bin/sh", launcher, "status", "-A"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)  # fmt: skip
    assert ran.stdout == "tool run --quiet --from hami-dra==1.2.3 kubectl-hami status -A\n"
