"""What `hami-dra topology` shows: the ResourceSlices of nodes, and the claims on their devices.

In: a reference machine, files, or the live cluster. Out: `Published`. Raises InputError.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.label_options import label_matcher
from controller.cli.state import ask_cluster
from controller.cli.tables import note
from hami_dra.api.similar_names import similar

if TYPE_CHECKING:
    from hami_dra.api.core import Node
    from hami_dra.api.kinds import Kind
    from hami_dra.api.resource import ResourceClaim, ResourceSlice
    from hami_dra.kube.http import HttpCluster


class Wanted(Struct, frozen=True):
    """Which nodes: `node`, or those with the labels of `selector`; neither: all that there are."""

    node: str | None = None
    selector: str = ""

    def names(self, nodes: "Sequence[Node]") -> set[str] | None:
        """Return the names of the wanted nodes; None: all. Raises CommandError for an invalid selector."""
        if self.selector:
            matches = label_matcher(self.selector)
            return {each.metadata.name for each in nodes if matches(each.metadata.labels)}
        return None if self.node is None else {self.node}


class Published(Struct, frozen=True):
    slices: "list[ResourceSlice]"
    claims: "Sequence[ResourceClaim]"
    where: str
    """How messages name the source."""
    nodes: set[str] | None = None
    """Only these are wanted; None: all."""


def of_machine(machine: str, node: str | None, publish_as: str) -> Published:
    import msgspec

    from hami_dra.api.resource import ResourceSlice
    from hami_dra.driver.fleet import pools_of
    from hami_dra.driver.simulated import machine as simulated
    from hami_dra.driver.slices import slice_bodies

    pools = pools_of(simulated(machine, node or machine.replace(".", "-")), publish_as=publish_as)
    slices = [msgspec.convert(body, ResourceSlice) for body in slice_bodies(pools)]
    return Published(slices, (), f"machine {machine}")


def of_files(paths: Sequence[Path], wanted: Wanted) -> Published:
    from hami_dra.api.kinds import NODE, RESOURCE_CLAIM, RESOURCE_SLICE
    from hami_dra.kube.documents import read_documents

    found: dict[str, tuple[Kind[Any], list[Any]]] = {
        kind.name: (kind, []) for kind in (RESOURCE_SLICE, RESOURCE_CLAIM, NODE)
    }
    for document in read_documents(paths):
        if (name := document.raw.get("kind")) in found:
            kind, objects = found[name]
            objects.append(_read(str(document), document.raw, kind))
    slices, claims, nodes = (objects for _, objects in found.values())
    return Published(slices, claims, ", ".join(map(str, paths)), wanted.names(nodes))


def _read(source: str, raw: dict[str, Any], kind: "Kind[Any]") -> Any:
    """Return the object as the cluster's would be read. Raises CommandError."""
    import msgspec

    from hami_dra.api.kinds import RESOURCE_SLICE
    from hami_dra.driver.limits import unreadable
    from hami_dra.kube.decoding import read_object

    try:
        found, problem = read_object(kind, msgspec.json.encode(raw))
    except msgspec.ValidationError as error:
        said = unreadable(raw) if kind is RESOURCE_SLICE else error
        raise CommandError(f"{source}: {said}") from error
    if problem:
        note(f"{source}: {problem}")
    return found


def of_cluster(wanted: Wanted, connection: Connection) -> Published:
    if wanted.selector:
        label_matcher(wanted.selector)  # refuses an invalid one before anything is read
    return ask_cluster(connection, lambda cluster: _listed(cluster, wanted))


async def _listed(cluster: "HttpCluster", wanted: Wanted) -> Published:
    from hami_dra.api.kinds import NODE, RESOURCE_CLAIM, RESOURCE_SLICE

    of_node = f"spec.nodeName={wanted.node}" if wanted.node else ""
    listing = await cluster.list(RESOURCE_SLICE, field_selector=of_node)
    claims = await cluster.list(RESOURCE_CLAIM)
    nodes = (await cluster.list(NODE, label_selector=wanted.selector)).items if wanted.selector else ()
    if wanted.node and not listing.items:
        await _check_node(cluster, wanted.node)
    newest: dict[tuple[str, str], int] = {}
    for item in listing.items:
        key = (item.spec.driver, item.spec.pool.name)
        newest[key] = max(newest.get(key, 0), item.spec.pool.generation)
    current = [
        item for item in listing.items if item.spec.pool.generation == newest[item.spec.driver, item.spec.pool.name]
    ]
    return Published(current, claims.items, "the cluster", wanted.names(nodes))


async def _check_node(cluster: "HttpCluster", name: str) -> None:
    """Raise CommandError if there is no such node."""
    from hami_dra.api.kinds import NODE
    from hami_dra.kube.protocol import Forbidden

    with suppress(Forbidden):
        known = {each.metadata.name for each in (await cluster.list(NODE)).items}
        if name not in known:
            raise CommandError(f"there is no node {name}{similar(name, known)}")
