"""Write the krew plugin: an archive with its launcher, and the manifest for krew-index that names its checksum.

    python -m hack.krew_plugin --out dist --version 0.1.0 --releases https://github.com/ORG/hami-dra/releases/download

`make release` does so, too (hack/release.py). The archive has the same bytes whenever and wherever it is made. `problems` are
the rules by which krew and krew-index refuse a manifest: ValidatePlugin (krew's internal/index/validation), platforms and the
length of lines (cmd/validate-krew-manifest, by which krew-index checks pull requests), and fields that its type does not have
(Plugin in pkg/index), which krew would ignore. `archive_problems` are those for the archive (internal/download,
internal/installation/move.go). krew itself tries both, without a release:

    kubectl krew install --manifest dist/hami.yaml --archive dist/kubectl-hami-0.1.0.tar.gz
"""

import argparse
import gzip
import hashlib
import io
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from hami_dra.api.meta import LabelSelector
from hami_dra.api.selectors import label_selector_matches

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "hack/krew"
API_VERSION: Final = "krew.googlecontainertools.github.com/v1alpha2"
_FIELDS: Final = {
    "plugin": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"version", "shortDescription", "description", "caveats", "homepage", "platforms"},
    "platform": {"uri", "sha256", "selector", "files", "bin"},
}
_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_SEMVER: Final = re.compile(rf"v{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LINE_LENGTHS: Final = {"description": 80, "shortDescription": 70, "caveats": 80}
_SYSTEMS: Final = ("darwin", "linux", "windows")
_ARCHITECTURES: Final = ("386", "amd64", "arm", "arm64", "ppc64le")
_WINDOWS_DEVICES: Final = re.compile(r"CON|PRN|AUX|NUL|(COM|LPT)[1-9]", re.IGNORECASE)
"""Names that no file on Windows may have, so no plugin of krew."""


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
    unsafe = not re.fullmatch(r"[0-9A-Za-z_-]+", name) or _WINDOWS_DEVICES.fullmatch(name)
    if unsafe or plugin["metadata"]["name"] != name:
        yield "metadata.name"
    if not spec.get("shortDescription") or re.search(r"[\r\n]", spec["shortDescription"]):
        yield "spec.shortDescription"
    if not _SEMVER.fullmatch(str(spec.get("version", ""))):
        yield "spec.version"
    if not spec.get("platforms"):
        yield "spec.platforms"
    yield from _long_lines(spec)
    yield from _platforms_problems(spec.get("platforms") or ())


def _long_lines(spec: Mapping[str, Any]) -> Iterator[str]:
    for field, most in _LINE_LENGTHS.items():
        if any(len(line) > most and " " in line.strip() for line in str(spec.get(field, "")).split("\n")):
            yield f"spec.{field}: a line is longer than {most} characters"


def _platforms_problems(platforms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    served: dict[tuple[str, str], int] = {}
    for number, platform in enumerate(platforms):
        yield from (f"spec.platforms[{number}].{field}" for field in _platform_problems(platform))
        for pair in _pairs(platform.get("selector") or {}):
            if served.setdefault(pair, number) != number:
                yield f"spec.platforms[{number}].selector: {'/'.join(pair)} is selected twice"
                break


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
    is_bare = any(name in selector and not selector[name] for name in ("matchLabels", "matchExpressions"))
    if not keys or is_bare or not {*keys} <= {"os", "arch"}:
        yield "selector"
    elif not any(_pairs(selector)):
        yield "selector: selects no platform that krew supports"


def _pairs(selector: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of operating system and architecture that a selector chooses."""
    for system, architecture in product(_SYSTEMS, _ARCHITECTURES):
        labels = {"os": system, "arch": architecture}
        if label_selector_matches(msgspec.convert(selector, LabelSelector), labels):
            yield system, architecture


def archive_problems(platform: Mapping[str, Any], packed: bytes) -> Iterator[str]:
    """Yield why krew could not install a platform from this .tar.gz. Patterns in `from` are not understood."""
    if hashlib.sha256(packed).hexdigest() != platform["sha256"]:
        yield "sha256 is not that of the archive"
    installed: dict[str, int] = {}
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
        for entry in tar.getmembers():
            if not (entry.isreg() or entry.isdir()):
                yield f"{entry.name}: neither a file nor a folder"
            if ".." in entry.name or entry.name.startswith(("/", "\\")):
                yield f"{entry.name}: outside the archive"
        modes = {entry.name: entry.mode for entry in tar.getmembers() if entry.isreg()}
    for operation in platform.get("files") or [{"from": name, "to": "."} for name in modes]:
        source, target = operation["from"], posixpath.normpath(operation["to"])
        if target != operation["to"] or target.startswith(("/", "..")):
            yield f"files: {operation['to']} is not a plain relative path"
        elif source not in modes:
            yield f"files: {source} is not in the archive"
        else:
            installed[posixpath.basename(source) if target == "." else target] = modes[source]
    if not installed.get(platform["bin"], 0) & 0o111:
        yield f"bin: {platform['bin']} is not installed, or not executable"


def write(out: Path, version: str, releases: str) -> None:
    """Write archive and manifest into a folder. Raises SystemExit for what krew would refuse."""
    text, packed = manifest(version, releases), archive(version)
    plugin = yaml.safe_load(text)
    found = list(problems("hami", plugin))
    found += [each for platform in plugin["spec"]["platforms"] for each in archive_problems(platform, packed)]
    if found:
        raise SystemExit(f"krew would refuse the manifest: {', '.join(found)}")
    (out / archive_name(version)).write_bytes(packed)
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
