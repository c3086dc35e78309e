"""The state of a cluster for read-only commands: from files, or else from the live cluster.

Used by `explain`, `status`, `doctor`, `snapshot`, `whatif` and `defrag`. In: the shared options. Out:
documents as `controller.insight.simulation` reads them. Those of a live cluster are whole objects,
as JSON: code that passes them on strips them (`controller.insight.simulation.essence`).

Read live: everything that a decision reads (`KINDS`), or `SHOWN` for a command that decides nothing;
where volumes cannot be judged, pods come without theirs. Not workloads: their pods exist already.
Secrets, ConfigMaps and Events are never read. Pods come in the order in which the controller
decides on them: priority, age, name.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.progress import OnProgress, quiet
from controller.cli.tables import note
from hami_dra.api import kinds, names
from hami_dra.api.kinds import Kind
from hami_dra.kube.documents import Document, read_documents
from hami_dra.kube.protocol import ClusterError, Forbidden, NotFound

if TYPE_CHECKING:
    from controller.cluster.pods.gang_key import Source
    from hami_dra.kube.http import HttpCluster

VIEWER: Final = "hami-dra-viewer"
"""ClusterRole with the rights of all commands that read (manifests/rbac-viewer.yaml)."""
_USER: Final = re.compile(r'User "([^"]+)"')
_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


def with_grant(error: Forbidden) -> str:
    """Return the API server's words, and the command that grants the rights.

    >>> print(with_grant(Forbidden('nodes is forbidden: User "jane" cannot list resource "nodes"')))
    nodes is forbidden: User "jane" cannot list resource "nodes"; an administrator grants the rights to read with: kubectl create clusterrolebinding hami-dra-viewer-jane --clusterrole=hami-dra-viewer --user=jane
    """
    found = _USER.search(str(error))
    if found is None:
        return str(error)
    user = found[1]
    account = _ACCOUNT.fullmatch(user)
    subject = f"--serviceaccount={account[1]}:{account[2]}" if account else f"--user={user}"
    binding = f"{VIEWER}-{re.sub(r'[^a-z0-9.-]+', '-', user.lower().rpartition(':')[2])}"
    command = f"kubectl create clusterrolebinding {binding} --clusterrole={VIEWER} {subject}"
    return f"{error}; an administrator grants the rights to read with: {command}"


T = TypeVar("T")

_GROUPS: Final[tuple[Kind[Any], ...]] = (kinds.POD_GROUP, kinds.COSCHEDULING_POD_GROUP, kinds.VOLCANO_POD_GROUP)
"""Most clusters serve none or one of them."""
NEEDED: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE,
    kinds.RESOURCE_SLICE,
    kinds.DEVICE_CLASS,
    kinds.RESOURCE_CLAIM,
    kinds.POD,
)
"""Without one of these, no answer would be correct."""
KINDS: Final[tuple[Kind[Any], ...]] = (
    kinds.NAMESPACE,
    kinds.NODE,
    kinds.PRIORITY_CLASS,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.RESOURCE_QUOTA,
    kinds.DEVICE_CLASS,
    kinds.DEVICE_TAINT_RULE,
    kinds.RESOURCE_SLICE,
    kinds.RESOURCE_CLAIM_TEMPLATE,
    kinds.RESOURCE_CLAIM,
    *kinds.STORAGE,
    *_GROUPS,
    kinds.POD,
)
"""What a decision reads, in the order in which they are read and returned."""
SHOWN: Final[tuple[Kind[Any], ...]] = (
    kinds.NAMESPACE,
    kinds.NODE,
    kinds.RESOURCE_QUOTA,
    kinds.DEVICE_CLASS,
    kinds.DEVICE_TAINT_RULE,
    kinds.RESOURCE_SLICE,
    kinds.RESOURCE_CLAIM,
    kinds.POD,
)
"""What devices, their tenants and quotas are read from: `controller.cli.seen`. Part of `KINDS`."""
_MISSED: Final = {
    kinds.NAMESPACE.name: "labels of namespaces (admin access, the webhook's) do not count",
    kinds.PRIORITY_CLASS.name: "pods keep the priority that is written in them",
    kinds.POD_DISRUPTION_BUDGET.name: "what is said of preemption does not respect them",
    kinds.RESOURCE_QUOTA.name: "quotas do not count",
    kinds.DEVICE_TAINT_RULE.name: "taints by rule do not count",
    kinds.RESOURCE_CLAIM_TEMPLATE.name: "pods whose claims are not generated yet cannot be decided on",
    kinds.POD_GROUP.name: "pods that are members of one cannot be decided on",
    **dict.fromkeys((kind.name for kind in kinds.STORAGE), "volumes of pods do not count"),
}
_OTHERS_SERVED: Final[dict[Kind[Any], tuple[Kind[Any], ...]]] = {
    kinds.DEVICE_TAINT_RULE: (kinds.DEVICE_TAINT_RULE_V1BETA2,),
    kinds.POD_GROUP: (kinds.POD_GROUP_V1ALPHA2,),
}
SOURCE: Final = Path("cluster")
"""Name of the source of live objects in messages."""


class VersionedState(Struct, frozen=True):
    documents: list[Document]
    kubernetes: tuple[int, int] | None
    """Version (major, minor) of the live cluster; None: files were read."""
    gang_sources: frozenset["Source"] | None = None
    """The optional kinds of gangs that its controller reads; None: files were read, or it may not be seen."""
    leaderless: bool = False
    """No controller leads in the live cluster, so nothing is placed now."""


def read_state(
    paths: Sequence[Path],
    connection: Connection,
    *,
    progress: OnProgress = quiet,
    tell: Callable[[str], None] = note,
    wanted: Sequence[Kind[Any]] = KINDS,
) -> list[Document]:
    """Return the documents of the files, or those of the live cluster that are of the kinds `wanted`.
    Raises InputError.

    `tell` gets what could not be read, with the consequence.
    """

    async def read(cluster: "HttpCluster") -> list[Document]:
        return await read_cluster(cluster, progress=progress, missed=lambda _, text: tell(text), wanted=wanted)

    return read_documents(paths) if paths else ask_cluster(connection, read)


def read_versioned(paths: Sequence[Path], connection: Connection, *, progress: OnProgress = quiet) -> VersionedState:
    """Return what `read_state` does, and the version of the live cluster. Raises InputError."""

    async def read(cluster: "HttpCluster") -> VersionedState:
        from controller.cli.leadership import is_leaderless

        documents = await read_cluster(cluster, progress=progress)
        version = await cluster.version()
        sources = gang_sources_in(await arguments_of(cluster, names.CONTROLLER))
        return VersionedState(documents, (version.major, version.minor), sources, await is_leaderless(cluster))

    return VersionedState(read_documents(paths), None) if paths else ask_cluster(connection, read)


async def arguments_of(cluster: "HttpCluster", deployment: str, namespace: str = names.SYSTEM_NAMESPACE) -> str:
    """Return the arguments of its containers, one a line; empty if it runs outside the cluster, or may not be seen."""
    try:
        raw = await cluster.get_raw(kinds.DEPLOYMENT, deployment, namespace)
    except (NotFound, Forbidden):
        return ""
    containers = raw.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or ()
    return "\n".join(word for each in containers for word in (*(each.get("command") or ()), *(each.get("args") or ())))


def gang_sources_in(arguments: str) -> "frozenset[Source] | None":
    """Return the optional kinds of gangs that a controller with these arguments reads; None: not known."""
    from controller.cluster.pods.gang_key import OPTIONAL_SOURCES

    found = re.findall(r"^--gangs-of[=\n](\S+)$", arguments, re.MULTILINE)
    return OPTIONAL_SOURCES.intersection(found) if arguments else None


def ask_cluster(
    connection: Connection, read: "Callable[[HttpCluster], Coroutine[Any, Any, T]]", *, any_version: bool = False
) -> T:
    """Return what `read` returns of the live cluster. Raises InputError, which says how to get a right
    that is missing.

    `any_version`: of Kubernetes; else hami-dra must be able to run there.
    """
    from hami_dra.kube.requirements import require_version

    async def connected() -> T:
        async with connection.open() as cluster:
            if not any_version:
                await require_version(cluster)
            return await read(cluster)

    try:
        return asyncio.run(connected())
    except Forbidden as error:
        raise CommandError(with_grant(error)) from error
    except ClusterError as error:
        raise CommandError(str(error)) from error


async def read_cluster(
    cluster: "HttpCluster",
    *,
    progress: OnProgress = quiet,
    missed: Callable[[Kind[Any], str], None] = lambda _, text: note(text),
    skipped: Callable[[str], None] = note,
    wanted: Sequence[Kind[Any]] = KINDS,
) -> list[Document]:
    """Return the objects of a live cluster of these kinds. Raises ClusterError if one of `NEEDED` cannot be read.

    `missed` gets a kind that could not be read, and the consequence.
    An object that does not fit its kind is left out: `skipped` gets its name and the reason. An
    object with a partly unreadable field stays: code that reads the documents names it.
    """
    found: list[dict[str, Any]] = []
    unread: dict[Kind[Any], str] = {}
    for kind in wanted:
        objects = await _objects(cluster, kind, progress, partial(unread.__setitem__, kind))
        if kind is kinds.POD and not unread.keys().isdisjoint(kinds.STORAGE):
            for raw in objects:
                raw.get("spec", {}).pop("volumes", None)
        readable = [raw for raw in objects if _is_readable(kind, raw, skipped)]
        # the controller's probe of its fence belongs to no user
        shown = [raw for raw in readable if names.PROBE_LABEL not in (raw["metadata"].get("labels") or {})]
        found.extend(_ordered(kind, shown))
    for kind, text in unread.items():
        missed(kind, text)
    return [Document(SOURCE, number, raw) for number, raw in enumerate(found, 1)]


async def _objects(
    cluster: "HttpCluster", kind: Kind[Any], progress: OnProgress, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return objects of a kind with kind and apiVersion, which list items lack. Raises ClusterError."""
    what = f"reading {kind.plural}"
    for candidate in (kind, *_OTHERS_SERVED.get(kind, ())):
        try:
            items = await cluster.list_raw(candidate, on_page=lambda read, left: progress(what, read, read + left))
        except NotFound:
            continue
        except Forbidden as error:
            if kind in NEEDED:
                raise
            tell(f"{error}: therefore {_MISSED[kind.name]}")
            return []
        return [{"apiVersion": candidate.api_version, "kind": kind.name, **item} for item in items]
    if kind in NEEDED:
        raise NotFound(f"list {kind.plural}: this cluster does not serve {kind.api_version}; hami-dra needs it")
    if kind in _GROUPS:
        return []
    tell(f"this cluster does not serve {kind.plural}.{kind.group or 'core'}: {_MISSED[kind.name]}")
    return []


def _is_readable(kind: Kind[Any], raw: dict[str, Any], skipped: Callable[[str], None]) -> bool:
    """Return whether the object can be read, else report it: one in a newer or malicious form stops no other."""
    from controller.insight.manifests import BadManifest, read

    try:
        read(str(SOURCE), kind, raw)
    except BadManifest as error:
        skipped(f"{error}; it is left out")
        return False
    return True


def _ordered(kind: Kind[Any], objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return objects by namespace and name; pods in the order of `controller.reconcile.queueing.queue`."""

    def rank(raw: dict[str, Any]) -> tuple[int, str, str]:
        metadata = raw["metadata"]
        key = f"{metadata.get('namespace', '')}/{metadata['name']}"
        if kind is not kinds.POD:
            return 0, "", key
        return -int(raw.get("spec", {}).get("priority") or 0), metadata.get("creationTimestamp") or "", key

    return sorted(objects, key=rank)
