"""What `make release` writes: whole, the same each time, and usable without the checkout."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml

from hack import krew_plugin, release
from hack.controlplane.build import BuildError
from hack.helm import helm

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
IMAGE = "registry.example.com/other"
HOME = PROJECT["urls"]["Repository"]


def skip_without_helm():
    try:
        helm.ensure()
    except BuildError as error:
        if os.environ.get("REQUIRE_ALL") == "1":
            raise
        pytest.skip(f"NO HELM, NOT TESTED: {error}")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    skip_without_helm()
    folder = tmp_path_factory.mktemp("release") / "dist"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        release.release(folder, IMAGE)
    return folder


def test_the_files_are_the_same_each_time(dist, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    release.release(tmp_path / "dist", IMAGE)
    files = {path.name: path.read_bytes() for path in dist.iterdir()}
    again = {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()}
    assert sorted(files) == sorted(again) == [
        "SHA256SUMS",
        f"hami-dra-{VERSION}.cdx.json",
        f"hami-dra-chart-{VERSION}.tgz",
        "hami.yaml",
        f"hami_dra-{VERSION}-py3-none-any.whl",
        f"hami_dra-{VERSION}.tar.gz",
        "install.yaml",
        f"kubectl-hami-{VERSION}.tar.gz",
    ]  # fmt: skip
    assert [name for name in files if files[name] != again[name]] == []


def test_checksums(dist):
    listed = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert listed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in dist.iterdir()
        if path.name != "SHA256SUMS"
    }  # fmt: skip


def test_the_krew_manifest_names_the_archive_of_this_release(dist):
    manifest = yaml.safe_load((dist / "hami.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = dist / f"kubectl-hami-{VERSION}.tar.gz"
    assert list(krew_plugin.problems("hami", manifest)) == []
    assert platform["uri"] == f"{HOME}/releases/download/v{VERSION}/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit, match="is not empty"):
        release.release(tmp_path, IMAGE)


def test_the_packaged_chart_renders_as_the_folder_does(dist, tmp_path):
    def rendered(chart):
        command = [str(helm.ensure()), "template", "hami-dra", str(chart), "--namespace", "hami-dra-system"]
        command += ["--set", f"image.repository={IMAGE},webhook.certificate.from=self,vendors.nvidia.enabled=true"]
        environment = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    packed = dist / f"hami-dra-chart-{VERSION}.tgz"
    assert rendered(packed) == rendered(ROOT / "charts/hami-dra")
    with tarfile.open(packed) as archive:
        values = yaml.safe_load(archive.extractfile("hami-dra/values.yaml"))
        assert {member.mtime for member in archive.getmembers()} == {1700000000}
    assert values["image"]["repository"] == IMAGE


def test_the_manifests_are_whole_and_hold_no_key(dist):
    objects = [each for each in yaml.safe_load_all((dist / "install.yaml").read_text()) if each]
    kinds = [each["kind"] for each in objects]
    assert kinds[0] == "Namespace"
    namespaces = {each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"}
    used = {each["metadata"].get("namespace") for each in objects} - {None, "default"}
    assert used <= namespaces == {"hami-dra-system", "hami-dra-probe"}
    assert kinds.count("Deployment") == 2
    assert [each.get("data", {}) for each in objects if each["kind"] == "Secret"] == [{}]
    images = {
        container["image"]
        for each in objects
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"{IMAGE}:{VERSION}"}


def test_the_bill_of_materials_has_what_the_image_installs(dist):
    listed = json.loads((dist / f"hami-dra-{VERSION}.cdx.json").read_text())
    assert (listed["bomFormat"], listed["metadata"]["timestamp"]) == ("CycloneDX", "2023-11-14T22:13:20Z")
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "export", "--frozen", "--no-dev", *release.IN_IMAGE, "--no-emit-project", "--no-hashes", "--quiet"]
    exported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pinned = set(re.findall(r"^([\w.-]+==[\w.]+)", exported, re.MULTILINE))
    found = {f"{each['name']}=={each['version']}" for each in listed["components"]}
    assert pinned
    assert {entry.lower() for entry in pinned} - found == set()


def test_the_readme_works_far_from_the_checkout(dist):
    with zipfile.ZipFile(dist / f"hami_dra-{VERSION}-py3-none-any.whl") as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = message_from_string(wheel.read(name).decode())
    text = metadata.get_payload()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    assert [each for each in targets if not each.startswith(("https://", "#"))] == []
    raw = HOME.replace("https://github.com/", "https://raw.githubusercontent.com/")
    ours = [each.removeprefix(f"{start}/") for each in targets for start in (f"{HOME}/blob/main", f"{raw}/main") if each.startswith(start)]  # fmt: skip
    assert [each for each in ours if not (ROOT / each.partition("#")[0]).exists()] == []


def test_notes_of_a_version():
    assert "The first version" in release.notes(VERSION)
    with pytest.raises(SystemExit, match="the tag says 9"):
        release.notes("9.9.9")
