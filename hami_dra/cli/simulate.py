"""`hami-dra simulate`: where would these pods go? Reads manifests, prints a table, JSON or YAML."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hami_dra.cli.errors import CommandError

if TYPE_CHECKING:
    from controller.simulation import Report

HELP = """Place the pods of a set of manifests and print where they go and why.

Reads files and folders (recursive, in name order): Nodes, ResourceSlices, DeviceClasses, claims, templates, pods and
workloads. Nothing is sent anywhere.

Examples:

    hami-dra simulate -f cluster.yaml -f examples/a-node-binpack-gpu-binpack.yaml

    hami-dra simulate -f manifests/ -o json --node-policy spread --fail-unplaced
"""


class Output(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


def register(app: typer.Typer) -> None:
    app.command("simulate", help=HELP)(simulate)


def simulate(
    files: Annotated[list[Path], typer.Option("-f", "--filename", help="File or folder; may be repeated.")],
    *,
    output: Annotated[Output, typer.Option("-o", "--output", help="How to print the answer.")] = Output.table,
    node_policy: Annotated[str | None, typer.Option(help="Default below annotations: binpack or spread.")] = None,
    device_policy: Annotated[
        str | None,
        typer.Option(
            help="Default below annotations: spread, binpack, topology-aware, mutex, numa, or a comma list. "
            "first-fit (Kubernetes' own order) overrides annotations."
        ),
    ] = None,
    feature_gates: Annotated[str, typer.Option(help="Kubernetes gates, A=true,B=false; defaults of 1.37.")] = "",
    fail_unplaced: Annotated[bool, typer.Option("--fail-unplaced", help="Exit 1 when a pod stays unplaced.")] = False,
) -> None:
    from controller.simulation import BadManifest
    from controller.simulation import simulate as run
    from hami_dra.cli.manifest_files import read_documents

    settings = _settings(node_policy, device_policy, feature_gates)
    documents = [(str(document.source), document.raw) for document in read_documents(files)]
    try:
        report = run(documents, settings)
    except BadManifest as error:
        raise CommandError(str(error)) from error
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    _print(report, output)
    if fail_unplaced and report.unplaced:
        raise typer.Exit(1)


def _settings(node_policy: str | None, device_policy: str | None, feature_gates: str) -> Any:
    from controller.allocation.features import FeatureGates, UnknownGate
    from controller.scoring import policies
    from controller.simulation import Settings
    from hami_dra.api import names

    first_fit = device_policy == names.FIRST_FIT
    try:
        gates = FeatureGates.parse(feature_gates)
        node = policies.parse_node_policy(node_policy, "--node-policy") if node_policy else names.BINPACK
        device = policies.DevicePolicy()
        if device_policy and not first_fit:
            device = policies.DevicePolicy(policies.parse_device_policy(device_policy, "--device-policy"))
    except (UnknownGate, policies.InvalidPolicy) as error:
        raise CommandError(str(error)) from error
    return Settings(policies=policies.Policies(node=node, device=device), first_fit=first_fit, gates=gates)


def _print(report: "Report", output: Output) -> None:
    if output is Output.json:
        import json

        typer.echo(json.dumps(report.document(), indent=2))
    elif output is Output.yaml:
        import yaml

        yaml.safe_dump(report.document(), sys.stdout, sort_keys=False)
    else:
        _print_table(report)


def _print_table(report: "Report") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(Console().width, 120))
    if report.placements:
        table = Table(box=None, pad_edge=False)
        for title in ("POD", "NODE", "CLAIM", "DEVICES", "SCORE"):
            table.add_column(title, overflow="fold", no_wrap=title in {"POD", "NODE"})
        for placement in report.placements:
            table.add_row(
                placement["pod"],
                placement["node"],
                "\n".join(claim["podClaimName"] for claim in placement["claims"]),
                "\n".join(_devices(claim["allocation"]) for claim in placement["claims"]),
                f"{placement['score']['node']:.2f}",
            )
        console.print(table)
    if report.unplaced:
        if report.placements:
            console.print()
        table = Table("UNPLACED", "REASONS", "MESSAGE", box=None, pad_edge=False)
        for entry in report.unplaced:
            reasons = ", ".join(f"{count} {code}" for code, count in sorted(entry["reasons"].items()))
            table.add_row(entry["pod"], reasons, entry["error"] or entry["message"])
        console.print(table)
    if not report.placements and not report.unplaced:
        console.print("no pod to place in the input")


def _devices(allocation: dict[str, Any]) -> str:
    parts = []
    for result in allocation["devices"]["results"]:
        used = " ".join(f"{name}={amount}" for name, amount in sorted(result.get("consumedCapacity", {}).items()))
        parts.append(result["device"] + (f" ({used})" if used else ""))
    return ", ".join(parts)
