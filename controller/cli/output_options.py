"""What a command prints, and its options: `--output` and `--no-headers`, with kubectl's names and meanings."""

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from msgspec import Struct

from controller.cli.tables import Line, TextLayout, print_lines
from hami_dra.api.flags import Option
from hami_dra.api.printable import escaped


class Output(StrEnum):
    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    name = "name"

    @property
    def is_table(self) -> bool:
        return self in {Output.table, Output.wide}


class Manifest(StrEnum):
    """Formats of commands that print objects."""

    yaml = "yaml"
    json = "json"
    name = "name"


_OPTION: Final = Option("Output format; wide has more columns, name only names.", flags=("-o", "--output"))
OutputOption = Annotated[Output, _OPTION]
ManifestOption = Annotated[Manifest, Option("Output format.", flags=("-o", "--output"))]
NoHeaders = Annotated[bool, Option("Leave out the headers of tables.")]


class Printing(Struct, frozen=True):
    """How a command prints what it found."""

    output: OutputOption = Output.table
    no_headers: NoHeaders = False

    @property
    def layout(self) -> TextLayout:
        """Return the layout for stdout. In a pipe and in a file a row is one line."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        return TextLayout(self.output is Output.wide, not self.no_headers, width)

    def show(
        self,
        lines: Callable[[TextLayout], Iterable[Line]],
        names: Callable[[], Iterable[str]],
        document: Callable[[], Any],
    ) -> None:
        """Print one of them, and make none of the others."""
        if self.output.is_table:
            print_lines(lines(self.layout))
        elif self.output is Output.name:
            print_lines(names())
        else:
            print_document(document(), self.output)


def print_document(document: Any, output: Output | Manifest) -> None:
    """Print what msgspec can turn into JSON, as JSON or YAML: both have the same keys and values."""
    import msgspec

    document = msgspec.to_builtins(document, str_keys=True)
    if output == "json":
        import json

        typer.echo(escaped(json.dumps(document, indent=2, ensure_ascii=False), keep="\n"))
    else:
        from hami_dra.driver.yaml_text import yaml_text

        typer.echo(yaml_text([document]), nl=False)


def print_objects(objects: Sequence[Mapping[str, Any]], output: Output | Manifest) -> None:
    """Print objects as kubectl does: YAML documents, a List as JSON, or `kind.group/name`."""
    if output == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": list(objects)}, output)
    elif output == "yaml":
        from hami_dra.driver.yaml_text import yaml_text

        typer.echo(yaml_text([dict(each) for each in objects]), nl=False)
    else:
        for each in objects:
            group = each["apiVersion"].rpartition("/")[0]
            typer.echo(f"{each['kind'].lower()}{f'.{group}' if group else ''}/{each['metadata']['name']}")
