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
    ],
)
def test_what_krew_refuses_is_named(path, value, problem):
    plugin = copy.deepcopy(yaml.safe_load(krew_plugin.manifest("1.2.3", RELEASES)))
    place = plugin
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert list(krew_plugin.problems("hami", plugin)) == [problem]


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
