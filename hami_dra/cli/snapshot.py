"""`hami-dra snapshot`: the state of a cluster in one file, as far as decisions read it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hami_dra.cli.errors import CommandError
from hami_dra.cli.state import KINDS, Connection, Context, Kubeconfig, note, read_state

if TYPE_CHECKING:
    from hami_dra.cluster.documents import Document

HELP = """Write what decisions read of a cluster into one file: nodes, slices, classes, claims, templates, pods, quotas.

Nothing else of these objects is in it: no command, argument, environment, image, volume, no annotation that hami-dra does not read,
no parameter of other drivers. Secrets and ConfigMaps are not even read. Names, labels and namespaces are as they are. Twice the
same state gives the same text, so that two files can be compared line by line. Inside a pod its service account is used.

The file is read by `-f` of simulate, explain, whatif, status and topology.

Examples:

    hami-dra snapshot -o monday.json

    hami-dra snapshot --context production -o monday.yaml

    hami-dra snapshot | hami-dra whatif -f /dev/stdin --without-node gpu-7

Exit status: 0 when it was written, 2 when the cluster cannot be read.
"""


def register(app: typer.Typer) -> None:
    app.command("snapshot", help=HELP)(snapshot)


def snapshot(
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file: JSON, or YAML where its name ends in .yaml.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    from controller.simulation.objects import gather
    from hami_dra.cli.progress import Progress

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
    """`kind: List`."""
    from controller.simulation.essence import essence

    kinds = {kind.name: kind for kind in KINDS}
    items = [essence(kinds[each.raw["kind"]], each.raw) for each in documents]
    found = {"apiVersion": "v1", "kind": "List", "items": items}
    if as_yaml:
        from hami_dra.driver.yaml_text import yaml_text

        return yaml_text([found])
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
