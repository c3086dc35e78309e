"""Options of read-only commands that say where the state of a cluster comes from.

`controller.cli.state` reads it. It is not imported here, so that help and completion are quick.
"""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from controller.settings.common import Kubeconfig
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hami_dra.kube.http import HttpCluster

Files = Annotated[
    tuple[Path, ...],
    Option(
        "File or folder, such as what snapshot writes; may be repeated. Default: the live cluster.",
        flags=("-f", "--filename"),
    ),
]


class Connection(Struct, frozen=True):
    """Which cluster."""

    kubeconfig: Kubeconfig = None
    context: Annotated[
        str | None, Option("Context of the kubeconfig; default: its current one.", metavar="NAME", values="contexts")
    ] = None

    def check(self) -> None:
        """Read the kubeconfig, before a command imports what takes time. Raises ConfigError."""
        from hami_dra.kube.credentials import chosen_access

        chosen_access(self.kubeconfig, self.context)

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[HttpCluster]":
        """Yield the cluster. Raises ConfigError."""
        from hami_dra.kube.http import connect

        cluster = connect(self.kubeconfig, self.context)
        try:
            yield cluster
        finally:
            await cluster.close()
