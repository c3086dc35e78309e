"""The option `--output` of commands that print a table or data."""

from enum import StrEnum
from typing import Annotated, Final

import typer


class Output(StrEnum):
    table = "table"
    json = "json"


class OutputWithYaml(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"


_OPTION: Final = typer.Option("-o", "--output", help="Output format.")
OutputOption = Annotated[Output, _OPTION]
OutputWithYamlOption = Annotated[OutputWithYaml, _OPTION]
