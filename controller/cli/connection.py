"""Options of read-only commands that say where the state of a cluster comes from.

`controller.cli.state` reads it. It is not imported here, so that help and completion are quick.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "-f",
        "--filename",
        help="File or folder, such as what snapshot writes; may be repeated. Default: the live cluster.",
    ),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """Arguments of `hami_dra.kube.http.connect`."""

    kubeconfig: str | None = None
    context: str | None = None
