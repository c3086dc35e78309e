"""Write the krew plugin: an archive with its launcher, and the manifest for krew-index that names its checksum.

    python -m hack.krew_plugin --out dist --version 0.1.0 --releases https://github.com/ORG/hami-dra/releases/download

`make release` does so, too (hack/release.py). The archive has the same bytes whenever and wherever it is made. `problems` are
the rules by which krew refuses a manifest (ValidatePlugin in krew's internal/index/validation), and fields that its type does
not have (Plugin in pkg/index), which krew would ignore.
"""

import argparse
import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "hack/krew"
API_VERSION: Final = "krew.googlecontainertools.github.com/v1alpha2"
_FIELDS: Final = {
    "plugin": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"version", "shortDescription", "description", "caveats", "homepage", "platforms"},
    "platform": {"uri", "sha256", "selector", "files", "bin"},
}
_SEMVER: Final = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


def archive(version: str) -> bytes:
    """Return the .tar.gz with launcher and licence."""
    launcher = (SOURCES / "kubectl-hami").read_text().replace("@VERSION@", version)
    files = (("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644), ("kubectl-hami", launcher.encode(), 0o755))
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, content, mode in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def manifest(version: str, releases: str) -> str:
    """Return the plugin manifest. `releases`: URL below which the files of each version are published."""
    values = {
        "VERSION": version,
        "HOMEPAGE": releases.partition("/releases")[0],
        "URI": f"{releases}/v{version}/{archive_name(version)}",
        "SHA256": hashlib.sha256(archive(version)).hexdigest(),
    }
    text = (SOURCES / "hami.yaml").read_text().partition("\n")[2]
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def archive_name(version: str) -> str:
    return f"kubectl-hami-{version}.tar.gz"


def problems(name: str, plugin: Mapping[str, Any]) -> Iterator[str]:
    """Yield why krew would refuse a manifest of this name."""
    spec = plugin.get("spec") or {}
    for what, found in (
        ("plugin", plugin),
        ("spec", spec),
        *(("platform", each) for each in spec.get("platforms") or ()),
    ):
        yield from (f"{what} has no field {field}" for field in sorted({*found} - _FIELDS[what]))
    if (plugin.get("apiVersion"), plugin.get("kind")) != (API_VERSION, "Plugin"):
        yield "apiVersion or kind"
    if not re.fullmatch(r"[\w-]+", name) or plugin["metadata"]["name"] != name:
        yield "metadata.name"
    if not spec.get("shortDescription") or re.search(r"[\r\n]", spec["shortDescription"]):
        yield "spec.shortDescription"
    if not _SEMVER.fullmatch(str(spec.get("version", ""))):
        yield "spec.version"
    if not spec.get("platforms"):
        yield "spec.platforms"
    for number, platform in enumerate(spec.get("platforms") or ()):
        for field in _platform_problems(platform):
            yield f"spec.platforms[{number}].{field}"


def _platform_problems(platform: Mapping[str, Any]) -> Iterator[str]:
    if not platform.get("uri"):
        yield "uri"
    if not re.fullmatch(r"[a-f0-9]{64}", str(platform.get("sha256", ""))):
        yield "sha256"
    if not platform.get("bin"):
        yield "bin"
    files = platform.get("files")
    if files is not None and not (files and all(each.get("from") and each.get("to") for each in files)):
        yield "files"
    selector = platform.get("selector") or {}
    keys = [*(selector.get("matchLabels") or ()), *(each["key"] for each in selector.get("matchExpressions") or ())]
    if not keys or not {*keys} <= {"os", "arch"}:
        yield "selector"


def write(out: Path, version: str, releases: str) -> None:
    """Write archive and manifest into a folder. Raises SystemExit for what krew would refuse."""
    text = manifest(version, releases)
    if found := list(problems("hami", yaml.safe_load(text))):
        raise SystemExit(f"krew would refuse the manifest: {', '.join(found)}")
    (out / archive_name(version)).write_bytes(archive(version))
    (out / "hami.yaml").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--releases", required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    write(chosen.out, chosen.version, chosen.releases.rstrip("/"))


if __name__ == "__main__":
    main()
