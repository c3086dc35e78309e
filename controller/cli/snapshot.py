"""`hami-dra snapshot`: writes the state of a cluster that decisions read to one file."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.errors import CommandError
from controller.cli.state import KINDS, Connection, Context, Kubeconfig, note, read_state

if TYPE_CHECKING:
    from hami_dra.kube.documents import Document

HELP = """Write the state of a cluster that decisions read to one file: nodes, slices, classes, claims, templates,
pods, quotas.

It contains nothing else of these objects: no command, argument, environment, image, volume, no annotation
that hami-dra does not read, no parameter of other drivers. Secrets and ConfigMaps are not even read. Names,
labels and namespaces are unchanged. The same state always gives the same text, so that two files can be
compared line by line. Inside a pod its service account is used.

Read the file with `-f` of simulate, explain, whatif, status and topology.

Examples:

    hami-dra snapshot -o monday.json

    hami-dra snapshot --context production -o monday.yaml

    hami-dra snapshot | hami-dra whatif -f /dev/stdin --without-node gpu-7

Exit status: 0 if the file was written, 2 if the cluster cannot be read.
"""


def register(app: typer.Typer) -> None:
    app.command("snapshot", help=HELP)(snapshot)


def snapshot(
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file: JSON, or YAML if its name ends in .yaml.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    from controller.cli.progress import Progress
    from controller.insight.simulation import gather

    with Progress() as progress:
        documents = read_state((), Connection(kubeconfig, context), progress=progress)
    for problem in gather(documents).unreadable:
        note(problem)
    text = snapshot_text(documents, as_yaml=output is not None and output.suffix in {".yaml", ".yml"})
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--output {output}: {error.strerror}") from error
    typer.echo(f"{len(documents)} objects in {output}", err=True)


def snapshot_text(documents: "Iterable[Document]", *, as_yaml: bool = False) -> str:
    """Return the documents as one `kind: List`."""
    from controller.insight.simulation import essence

    kinds = {(kind.group, kind.name): kind for kind in KINDS}
    items = [essence(kinds[_group(each.raw), each.raw["kind"]], each.raw) for each in documents]
    found = {"apiVersion": "v1", "kind": "List", "items": items}
    if as_yaml:
        from hami_dra.driver.yaml_text import yaml_text

        return yaml_text([found])
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _group(raw: Mapping[str, Any]) -> str:
    return str(raw.get("apiVersion", "")).rpartition("/")[0]
