"""Options of read-only commands that say where the state of a cluster comes from.

`controller.cli.state` reads it. It is not imported here, so that help and completion are quick.
"""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from controller.cli.errors import CommandError

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "-f",
        "--filename",
        help="File or folder, such as what snapshot writes; may be repeated. Default: the live cluster.",
    ),
]


class Connection(Struct, frozen=True):
    """Arguments of `hami_dra.kube.http.connect`."""

    kubeconfig: str | None = None
    context: str | None = None

    def check(self) -> None:
        """Read the kubeconfig, before a command imports what takes time. Raises CommandError."""
        from hami_dra.kube.credentials import chosen_access
        from hami_dra.kube.protocol import ConfigError

        try:
            chosen_access(self.kubeconfig, self.context)
        except ConfigError as error:
            raise CommandError(str(error)) from error
