"""Namespaces as kubectl reads them: `-n`, `-A`, else the namespace of the kubeconfig's context."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from controller.cli.errors import CommandError
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from controller.cli.connection import Connection
    from hami_dra.kube.documents import Document

_DEFAULT: Final = "default"

Namespace = Annotated[
    str | None,
    Option(
        "Namespace of pods, claims and quotas; default: that of the kubeconfig's context.",
        flags=("-n", "--namespace"),
        metavar="NAMESPACE",
        values="namespaces",
    ),
]
AllNamespaces = Annotated[bool, Option("All namespaces.", flags=("-A", "--all-namespaces"))]


def pod_namespace(namespace: str | None, files: Sequence[Path], connection: "Connection") -> str:
    """Return the namespace of a pod that is named without one. Raises ConfigError."""
    if namespace is not None or files:
        return namespace or _DEFAULT
    from hami_dra.kube.credentials import default_namespace

    return default_namespace(connection.kubeconfig, connection.context)


def listed_namespace(
    namespace: str | None, files: Sequence[Path], connection: "Connection", *, all_namespaces: bool
) -> str | None:
    """Return the namespace whose pods or quotas are listed; None: all, as in files. Raises CommandError."""
    if namespace is not None and all_namespaces:
        raise CommandError("-n names one namespace and -A all of them: leave out one of the two")
    if all_namespaces or (files and namespace is None):
        return None
    return pod_namespace(namespace, files, connection)


def check_namespace(namespace: str | None, documents: "Iterable[Document]") -> None:
    """Raise CommandError if a namespace is named that the state does not have."""
    if namespace is None:
        return
    known = {_DEFAULT}
    for each in documents:
        metadata = each.raw.get("metadata") or {}
        known.add(metadata.get("name", "") if each.raw.get("kind") == "Namespace" else metadata.get("namespace", ""))
    if namespace not in known:
        from hami_dra.api.similar_names import similar

        raise CommandError(f"-n {namespace}: there is no such namespace{similar(namespace, known - {''})}")
