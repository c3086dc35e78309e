"""Write everything that a release publishes into a folder: `make release`.

    python -m hack.release [--out dist] [--image NAME]
    python -m hack.release --notes VERSION      print what CHANGELOG.md says of a version

| file | what it is |
|---|---|
| hami_dra-VERSION.tar.gz, hami_dra-VERSION-py3-none-any.whl | the Python package |
| hami-dra-chart-VERSION.tgz | the chart, with the contents of what it links to |
| install.yaml | the chart rendered with its defaults, for kubectl apply |
| kubectl-hami-VERSION.tar.gz, hami.yaml | the krew plugin, and its manifest for krew-index |
| hami-dra-VERSION.cdx.json | what the image contains from PyPI (CycloneDX 1.5, from uv.lock) |
| SHA256SUMS | of all of them |

The same commit gives the same bytes: files carry the time of the commit (SOURCE_DATE_EPOCH), the
build backend is pinned by hashes, and whatever a tool adds of its own (times, random identifiers,
owners of files) is replaced. The image is built apart (hack/image/build.sh), since that needs
Docker.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from hack import krew_plugin
from hack.helm import helm

ROOT: Final = Path(__file__).resolve().parent.parent
UV: Final = str(Path(sys.executable).parent / "uv")
CHART: Final = "charts/hami-dra"
KUSTOMIZE: Final = "kustomize/base"
CONSTRAINTS: Final = "hack/image/build-constraints.txt"
NAMESPACE: Final = "hami-dra-system"
IN_IMAGE: Final = ("--extra", "controller", "--extra", "dashboard", "--extra", "driver")
"""As in the Dockerfile."""
DEFAULT_IMAGE: Final = "registry.example.com/hami-dra"
_REPOSITORY: Final = re.compile(r"(^image:\n(?:  .*\n|\n)*?  repository: )[^\s#]+", re.MULTILINE)
_VALUES: Final = ("webhook.certificate.from=self",)
"""Beside the image. The chart's own default makes an authority with each rendering, whose key would
stand in the file.
"""


def version() -> str:
    """Return the version of the project. Raises SystemExit where the chart has another one."""
    project: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())
    if {chart["version"], chart["appVersion"]} != {project}:
        raise SystemExit(f"release: pyproject.toml has version {project}, {CHART}/Chart.yaml {chart['version']}")
    return project


def commit_time() -> int:
    """Return SOURCE_DATE_EPOCH, else the time of the commit, in seconds since 1970."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(_output("git", "log", "-1", "--format=%ct"))


def build_package(out: Path, epoch: int) -> None:
    """Build the source distribution, and the wheel from it."""
    command = [UV, "build", "--quiet", "--build-constraints", CONSTRAINTS, "--require-hashes", "--out-dir", str(out)]
    _output(*command, epoch=epoch)
    (out / ".gitignore").unlink(missing_ok=True)


def package_chart(out: Path, epoch: int, image: str) -> None:
    """Package the chart with Helm, and write the archive once more without times and owners.

    The image becomes the default of its values.
    """
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(scratch) / "chart"
        shutil.copytree(ROOT / CHART, chart)
        values = chart / "values.yaml"
        text, found = _REPOSITORY.subn(rf"\g<1>{image}", values.read_text())
        if found != 1:
            raise SystemExit(f"release: {CHART}/values.yaml has no single image.repository")
        values.write_text(text)
        _output(str(helm.ensure()), "package", str(chart), "--destination", scratch)
        (packed,) = Path(scratch).glob("*.tgz")
        target = out / f"hami-dra-chart-{packed.name.removeprefix('hami-dra-')}"
        target.write_bytes(normalized(packed.read_bytes(), epoch))


def normalized(archive: bytes, epoch: int) -> bytes:
    """Return a .tar.gz with the same files, sorted, all of the same time, mode and owner."""
    written = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as source,
        gzip.GzipFile(fileobj=written, mode="wb", filename="", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            made = tarfile.TarInfo(member.name)
            made.size, made.mtime, made.mode = member.size, epoch, 0o644
            target.addfile(made, source.extractfile(member))
    return written.getvalue()


def render_manifests(out: Path, image: str) -> None:
    """Write install.yaml: the namespace, and the chart with its defaults, without hooks."""
    head = (
        f"# hami-dra {version()}: kubectl apply --server-side -f install.yaml\n"
        "# Controller, webhook, policies, rights and device classes; the drivers of the nodes come with the chart.\n"
        f"# Made by `make release` from {CHART} with {', '.join(_VALUES)}.\n"
    )
    (out / "install.yaml").write_text(head + default_manifests(f"image.repository={image}"))


def default_manifests(*values: str) -> str:
    """Return the namespace and the chart with its defaults and `values`, without hooks, as YAML."""
    settings = [part for value in (*_VALUES, *values) for part in ("--set", value)]
    command = [str(helm.ensure()), "template", "hami-dra", CHART, "--namespace", NAMESPACE, "--no-hooks", *settings]
    documents = yaml.safe_load_all((ROOT / "manifests/namespace.yaml").read_text())
    (namespace,) = [each for each in documents if each["metadata"]["name"] == NAMESPACE]
    return f"---\n{yaml.safe_dump(namespace, sort_keys=False)}{_output(*command)}"


def write_kustomize_base() -> None:
    """Write kustomize/base/hami-dra.yaml, which a kustomization cannot read from the chart's folder."""
    head = f"# {CHART} with {', '.join(_VALUES)}. Written by `make kustomize`: change the chart.\n"
    (ROOT / KUSTOMIZE / "hami-dra.yaml").write_text(head + default_manifests())


def write_sbom(out: Path, epoch: int) -> None:
    """Write what uv.lock pins for the image, without the random number and the time that uv puts in."""
    options = ("--format", "cyclonedx1.5", "--frozen", "--no-dev", *IN_IMAGE, "--quiet")
    listed = json.loads(_output(UV, "export", *options))
    listed["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    del listed["serialNumber"]
    content = json.dumps(listed, sort_keys=True)
    listed["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, content).urn
    (out / f"hami-dra-{version()}.cdx.json").write_text(json.dumps(listed, indent=2) + "\n")


def write_krew_plugin(out: Path) -> None:
    """Write the plugin's archive, and the manifest that says where a release publishes it."""
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    krew_plugin.write(out, version(), f"{home}/releases/download")


def write_checksums(out: Path) -> None:
    """Write SHA256SUMS, as sha256sum --check reads it."""
    files = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def notes(wanted: str) -> str:
    """Return the section of CHANGELOG.md on a version. Raises SystemExit if it is another version, or has none."""
    if wanted != version():
        raise SystemExit(f"release: the tag says {wanted}, pyproject.toml {version()}")
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    found = [section for section in sections if section.startswith(f"[{wanted}]")]
    if len(found) != 1:
        raise SystemExit(f"release: CHANGELOG.md needs one section [{wanted}], it has {len(found)}")
    return found[0].partition("\n")[2].strip() + "\n"


def release(out: Path, image: str) -> None:
    """Write all files into `out`, which must be empty or missing."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SystemExit(f"release: {out} is not empty")
    version()
    epoch = commit_time()
    build_package(out, epoch)
    package_chart(out, epoch, image)
    render_manifests(out, image)
    write_krew_plugin(out)
    write_sbom(out, epoch)
    write_checksums(out)


def _output(*command: str, epoch: int | None = None) -> str:
    environment = {**os.environ} if epoch is None else {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: {command[0]} {command[1]} failed:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder (default: dist)")
    parser.add_argument("--image", default=DEFAULT_IMAGE, help=f"repository of the image (default: {DEFAULT_IMAGE})")
    parser.add_argument("--notes", metavar="VERSION", help="print the notes on this version instead")
    given = parser.parse_args()
    if given.notes:
        print(notes(given.notes), end="")
        return
    release(given.out, given.image)
    print((given.out / "SHA256SUMS").read_text(), end="")


if __name__ == "__main__":
    main()
