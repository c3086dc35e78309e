"""Write the state of a cluster that decisions read to one file: nodes, slices, classes, claims,
templates, pods, quotas.

It contains nothing else of these objects: no commands, arguments, environment variables or images,
no volumes but those that tie a pod to a node, no annotations that hami-dra does not read, no
parameters of other drivers. Secrets and ConfigMaps are never read. Names, labels and namespaces are
unchanged. The same state always gives the same text, so that two files can be compared line by
line. Inside a pod the command uses the pod's service account.

Read the file with `-f` of simulate, explain, whatif, defrag, status and topology.

Examples:
    hami-dra snapshot --to monday.json
    hami-dra snapshot --context production --to monday.yaml
    hami-dra snapshot | hami-dra whatif -f /dev/stdin --without-node gpu-7

Exit status: 0 if the file was written, 2 if the cluster cannot be read.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.output_options import Manifest, print_objects
from controller.cli.program import program
from controller.cli.tables import counted, note
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from hami_dra.kube.documents import Document


def snapshot(
    *,
    file: Annotated[
        Path | None,
        Option("Write to this file: YAML if its name ends in .yaml, else JSON.", flags=("--to",), metavar="FILE"),
    ] = None,
    output: Annotated[
        str, Option("Output format.", flags=("-o", "--output"), metavar="<json|yaml|name>", values="formats")
    ] = "",
    connection: Connection,
) -> None:
    from controller.cli.progress import Progress
    from controller.cli.state import read_state
    from controller.insight.manifests import gather

    file, form = _destination(file, output)
    with Progress() as progress:
        documents = read_state((), connection, progress=progress)
    for problem in gather(documents).unreadable:
        note(problem)
    if form is Manifest.name:
        print_objects([each.raw for each in documents], form)
        return
    text = snapshot_text(documents, as_yaml=form is Manifest.yaml)
    if file is None:
        typer.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--to {file}: {error.strerror}") from error
    typer.echo(f"{counted(len(documents), 'object')} in {file}", err=True)


def _destination(file: Path | None, output: str) -> tuple[Path | None, Manifest]:
    """Return the file, None for stdout, and the format; `-o` took a file once. Raises CommandError."""
    if output and output not in list(Manifest):
        if "." not in output and "/" not in output:
            raise CommandError(f"--output {output}: it is none of {', '.join(Manifest)}; name a file with --to")
        if file is not None:
            raise CommandError(f"--output {output}: give a format; the file is {file}")
        note(f"-o names a format now, as in kubectl; write: {program()} snapshot --to {output}")
        file, output = Path(output), ""
    if output:
        return file, Manifest(output)
    return file, Manifest.yaml if file is not None and file.suffix in {".yaml", ".yml"} else Manifest.json


def snapshot_text(documents: "Iterable[Document]", *, as_yaml: bool = False) -> str:
    """Return the documents as one `kind: List`."""
    from controller.cli.state import KINDS
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
