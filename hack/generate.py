"""Write what is made from code: `deviceclasses/` from the vendors, `resourceslices/` from the
reference machines, the golden outputs of `hami-dra convert`, `simulate` and `whatif`, the JSON
Schema of driver profiles, the pictures of the documents, Grafana's dashboard, the chart's copies of
what ships and the table of its values, and the stubs of kubelet's gRPC interfaces.

    python -m hack.generate           write them (make generate)
    python -m hack.generate --check   change nothing; fail if a file is not what it should be

A test does the check, so a change of what we publish is seen as a diff. Files that belong to nobody
any more are removed; `deviceclasses/compat/` holds other projects' manifests and is left alone.
"""

import argparse
import json
import math
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from typing import Final
from unittest.mock import patch

import msgspec
import typer
from grpc_tools import protoc
from typer.testing import CliRunner

from controller.cli import progress
from controller.cli.main import register
from controller.webhook.files import convert_documents
from hack.chart_files import chart_files, copied_files
from hack.cli_reference import cli_reference
from hack.dashboard import PATH as DASHBOARD
from hack.dashboard import dashboard
from hack.overview_picture import overview_picture
from hack.package_picture import package_picture
from hack.pictures import FOLDER as PICTURES
from hack.pictures import pictures
from hack.vendor_lists import vendor_lists
from hami_dra.driver.simulated import machine, machine_names, summary
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.driver.yaml_text import yaml_text
from hami_dra.kube.documents import Document, read_documents
from hami_dra.vendors.driver_profile_file import DriverProfileFile
from hami_dra.vendors.publishing import PublishingVendor
from hami_dra.vendors.registry import PUBLISHING_VENDORS

ROOT: Final = Path(__file__).resolve().parent.parent
CLASSES: Final = "deviceclasses"
SLICES: Final = "resourceslices"
PROFILE_SCHEMA: Final = "driverprofiles/schema.json"
PROTO: Final = "hami_dra/driver/kubelet/proto"
CONVERT: Final = "tests/golden/convert"
SIMULATE: Final = "tests/golden/simulate"
WHATIF: Final = "tests/golden/whatif"
_RULES: Final = "Parameters that no claim may change (final) and minimums go into spec.config: docs/claims.md."
GOLDEN: Final = {SIMULATE: "simulate", WHATIF: "whatif"}
"""Folder → its command. Each folder in it is a case: `arguments`, and `output` as the command
prints it; `notes`, if there are any, from stderr.
"""


def generated() -> dict[str, str]:
    """Path below the root of the checkout → text."""
    files = device_classes(PUBLISHING_VENDORS)
    ours = {vendor.name for vendor in PUBLISHING_VENDORS}
    for name in machine_names():
        node = name.replace(".", "-")
        found = machine(name, node)
        if {card.vendor for card in found.cards} <= ours:
            text = _header(f"machine {name}", f"{summary(name)}; as node {node}.") + yaml_text(
                slice_bodies(machine_pools(found))
            )
            files[f"{SLICES}/{name}.yaml"] = text
    files[f"{CONVERT}/output.yaml"] = converted()
    for case in golden_cases():
        output, notes = printed(case)
        files[f"{case}/output"] = output
        if notes:
            files[f"{case}/notes"] = notes
    files[PROFILE_SCHEMA] = json.dumps(msgspec.json.schema(DriverProfileFile), indent=2) + "\n"
    files[DASHBOARD] = dashboard()
    files |= pictures() | package_picture() | overview_picture() | vendor_lists() | cli_reference() | stubs()
    return files | chart_files(files)


def device_classes(vendors: Iterable[PublishingVendor]) -> dict[str, str]:
    """The DeviceClasses of these vendors."""
    files = {}
    for vendor in vendors:
        for device_class in vendor.device_classes():
            resource = device_class["spec"].get("extendedResourceName")
            use = f"Whole cards, also for pods that ask for {resource}." if resource else "Parts of cards."
            text = _header(f"vendor {vendor.name}", f"{use} {_RULES}") + yaml_text([device_class])
            files[f"{CLASSES}/{device_class['metadata']['name']}.yaml"] = text
    return files


def stubs() -> dict[str, str]:
    """What grpcio-tools makes of the .proto files: messages, their types, services."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PROTO).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"--proto_path={ROOT}", *outputs, *sources]) != 0:
            raise SystemExit(f"protoc refuses the files in {PROTO}: see above")
        return {f"{PROTO}/{path.name}": path.read_text() for path in (Path(folder) / PROTO).iterdir()}


def converted() -> str:
    """What `hami-dra convert` makes of the golden input."""
    documents = read_documents([ROOT / CONVERT / "input.yaml"])
    result = convert_documents([Document(Path(one.source.name), one.index, one.raw) for one in documents])
    warnings = "".join(f"# warning: {warning}\n" for warning in result.warnings)
    return (
        _header(f"{CONVERT}/input.yaml", "What hami-dra convert makes of it.") + warnings + yaml_text(result.documents)
    )


def golden_cases() -> list[str]:
    """Folders, from the root of the checkout."""
    return sorted(
        str(path.parent.relative_to(ROOT)) for folder in GOLDEN for path in (ROOT / folder).glob("*/arguments")
    )


def printed(case: str) -> tuple[str, str]:
    """What the command prints on stdout and stderr, with what differs from run to run made equal.

    A slow machine shows no progress here.
    """
    app = typer.Typer()
    register(app, GOLDEN[str(Path(case).parent)])
    with chdir(ROOT), patch.object(progress, "PATIENCE", math.inf):
        arguments = shlex.split((Path(case) / "arguments").read_text())
        result = CliRunner().invoke(app, arguments)
    if result.exception is not None:
        raise result.exception
    shares: dict[str, str] = {}
    text = re.sub(
        _SHARE_ID, lambda found: found[1] + shares.setdefault(found[2], f"share-{len(shares) + 1}"), result.stdout
    )
    return re.sub(_TIMESTAMP, r"\g<1>now", text), result.stderr


_SHARE_ID: Final = r"(\bshareID\W+?)'?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})'?"
_TIMESTAMP: Final = r"(\ballocationTimestamp\W+)[0-9TZ:-]+"


def stale() -> list[str]:
    """Files that are missing, differ, or should not be there."""
    wanted = generated()
    places = [
        (CLASSES, "*.yaml"),
        (SLICES, "*.yaml"),
        *((folder, name) for folder in GOLDEN for name in ("*/output", "*/notes")),
        (PICTURES, "*.svg"),
        (PROTO, "*_pb2*.py*"),
    ]
    present = {str(path.relative_to(ROOT)) for folder, name in places for path in (ROOT / folder).glob(name)}
    present.update(copied_files())
    different = [path for path, text in wanted.items() if not _is(ROOT / path, text)]
    return sorted([*different, *(present - wanted.keys())])


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    outdated = stale()
    if parser.parse_args().check:
        print("\n".join(f"{path}: not up to date; run make generate" for path in outdated) or "all up to date")
        return 1 if outdated else 0
    wanted = generated()
    for path in outdated:
        target = ROOT / path
        if path in wanted:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(wanted[path])
        else:
            target.unlink()
        print(f"{'wrote' if path in wanted else 'removed'} {path}")
    return 0


def _header(source: str, use: str) -> str:
    return f"# Generated from {source}: change it there and run make generate.\n# {use}\n"


if __name__ == "__main__":
    sys.exit(main())
