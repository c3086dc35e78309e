"""Options that commands which talk to a cluster have in common: one spelling, one set of values, one help text."""

from enum import StrEnum
from typing import Annotated

import typer


class Mode(StrEnum):
    exclusive = "exclusive"
    native = "native"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class Gate(StrEnum):
    on = "on"
    off = "off"


Kubeconfig = Annotated[
    str | None, typer.Option(envvar="KUBECONFIG", help="Path; default: in-cluster, else ~/.kube/config.")
]
Context = Annotated[str | None, typer.Option(help="Of the kubeconfig; default: its current one.")]
