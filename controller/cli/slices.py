"""Print, check or publish ResourceSlices.

The devices of a machine are printed exactly as the driver publishes them. A fleet file names
machines and how many of each.

Examples:
    hami-dra slices --list
    hami-dra slices --machine g4dn.12xlarge --node n1
    hami-dra slices --machine dgx-h100 --node n1 --with-nodes -o yaml > n1.yaml
    hami-dra slices --machine dgx-a100 --mig
    hami-dra slices --check resourceslices/
    hami-dra slices --fleet fleet.yaml --publish --kubeconfig ~/.kube/config

A fleet file:

    apiVersion: hami.io/v1alpha1
    kind: Fleet
    zones: [a, b, c]
    nodes:
    - {machine: g4dn.12xlarge, count: 3, name: "t4-{index}"}
    - {machine: g5.12xlarge, count: 3, labels: {team: red}}
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.output_options import Printing, print_objects
from controller.cli.tables import TextTable, counted, print_lines
from controller.cli.vendor_options import SlicesCommand, given_options
from controller.views.columns import Columns, text_column
from hami_dra.api.flags import Option
from hami_dra.api.printable import escaped
from hami_dra.driver.fence import FENCE, FenceMode

if TYPE_CHECKING:
    from hami_dra.api.config import FleetFile
    from hami_dra.driver.cards_view import CardView
    from hami_dra.driver.fleet import Version
    from hami_dra.kube.documents import Document

COMMAND = SlicesCommand


def slices(
    command: typer.Context,
    *,
    list_machines: Annotated[bool, Option("List the reference machines.", flags=("--list",))] = False,
    machine: Annotated[str | None, Option("Print the slices of one reference machine.", values="machines")] = None,
    node: Annotated[str | None, Option("Name of its node; default: derived from the machine's name.")] = None,
    publish_as: Annotated[str, Option("Imitate another driver, such as gpu.nvidia.com.", metavar="DRIVER")] = "",
    mig: Annotated[
        bool | None,
        Option(
            "Whether GPUs that support MIG are in MIG mode; default: defined by the machine.", flags=("--mig/--no-mig",)
        ),
    ] = None,
    fleet: Annotated[Path | None, Option("Print, or with --publish write, the slices of a fleet file.")] = None,
    check: Annotated[
        tuple[Path, ...],
        Option(
            "Check that the slices in files or folders make whole pools; with --kubeconfig (or KUBECONFIG) "
            "or --context, an API server checks each slice too, and stores nothing."
        ),
    ] = (),
    printing: Printing,
    with_nodes: Annotated[bool, Option("Print the Node objects too, for simulate.")] = False,
    fence: Annotated[FenceMode, FENCE] = "auto",
    publish: Annotated[bool, Option("Write the fleet to a cluster and keep it up to date.")] = False,
    once: Annotated[bool, Option("With --publish: write once and exit.")] = False,
    remove: Annotated[bool, Option("Remove the fleet from a cluster and exit.")] = False,
    connection: Connection,
) -> None:
    from hami_dra.driver.fleet import parse_fleet, read_fleet

    sources = {"--list": list_machines, "--machine": machine, "--fleet": fleet, "--check": check}
    chosen = [name for name, value in sources.items() if value]
    if len(chosen) != 1:
        what = " and ".join(chosen) or "none of them"
        raise CommandError(f"choose one of --list, --machine, --fleet and --check; {what} was given")
    if (publish or remove) and fleet is None:
        raise CommandError("--publish and --remove need --fleet: put the machines into a fleet file (see --help)")
    if list_machines:
        _list(printing)
    elif check:
        _check(check, connection)
    elif fleet is not None and (publish or remove):
        _publish(fleet, connection, fence=fence, once=once, remove=remove)
    elif fleet is not None:
        _print(_fleet_objects(read_fleet(fleet), fence=fence, with_nodes=with_nodes), printing)
    elif machine is not None:
        single = {
            "machine": machine,
            "name": node or machine.replace(".", "-"),
            "publishAs": publish_as,
            "mig": mig,
            "sharing": {option.field: value for option, value in given_options(command).items()},
        }
        file = parse_fleet({"nodes": [single]}, "--machine")
        objects = _fleet_objects(file, fence=fence, with_nodes=with_nodes, where="nodes[0]: ")
        _print(_without_fleet(objects), printing)


# --- print ----------------------------------------------------------------------------------------


def _list(printing: Printing) -> None:
    from hami_dra.driver.simulated import machine_names, summary

    machines = [{"name": name, "description": summary(name)} for name in machine_names()]
    table = TextTable.of(_MACHINES, machines)
    printing.show(table.lines, lambda: (each["name"] for each in machines), lambda: machines)


_MACHINES: "Final[Columns[dict[str, str]]]" = (
    text_column("machine", lambda machine: machine["name"]),
    text_column("description", lambda machine: machine["description"]),
)


def _fleet_objects(file: "FleetFile", *, fence: FenceMode, with_nodes: bool, where: str = "") -> list[dict[str, Any]]:
    """Return nodes, if requested, and slices; `auto` means no fence. `where` is removed from errors."""
    from hami_dra.api.errors import ConfigError
    from hami_dra.driver.fleet import planned_nodes
    from hami_dra.driver.slices import fenced, slice_bodies

    try:
        planned = planned_nodes(file)
    except ConfigError as error:
        raise CommandError(str(error).removeprefix(where)) from error
    objects: list[dict[str, Any]] = []
    for node in planned.values():
        if with_nodes:
            ready = [{"type": "Ready", "status": "True"}]
            status = {"capacity": node.resources, "allocatable": node.resources, "conditions": ready}
            objects.append({**node.body, "status": status})
        objects += slice_bodies(fenced(pool, fence=fence == "on") for pool in node.pools)
    return objects


def _without_fleet(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the fleet label: a single machine belongs to no fleet."""
    from hami_dra.api.names import FLEET_LABEL

    for item in objects:
        labels = {key: value for key, value in item["metadata"].pop("labels", {}).items() if key != FLEET_LABEL}
        if labels:
            item["metadata"]["labels"] = labels
    return objects


def _print(objects: list[dict[str, Any]], printing: Printing) -> None:
    if not printing.output.is_table:
        print_objects(objects, printing.output)
        return
    import msgspec

    from hami_dra.api.resource import ResourceSlice
    from hami_dra.driver.cards_view import cards_of

    found = [msgspec.convert(item, ResourceSlice) for item in objects if item["kind"] == "ResourceSlice"]
    layout = printing.layout
    print_lines(TextTable.of(_CARDS, cards_of(found), wide=layout.wide).lines(layout))


_CARDS: "Final[Columns[CardView]]" = (
    text_column("node", lambda card: card.node),
    text_column("driver", lambda card: card.driver),
    text_column("device", lambda card: card.device),
    text_column("product", lambda card: card.product),
    text_column("memory", lambda card: card.memory, number=True),
    text_column("cores", lambda card: card.cores, number=True),
    text_column("shares", lambda card: card.shares, number=True),
    text_column("island", lambda card: card.group, wide=True),
    text_column("numa", lambda card: "" if card.numa is None else str(card.numa), wide=True),
    text_column("uuid", lambda card: card.uuid, wide=True),
)


# --- check ----------------------------------------------------------------------------------------


def _check(paths: Sequence[Path], connection: Connection) -> None:
    """Check files of slices. Exit status 1 if something is wrong; every violation is one line."""
    import asyncio

    from hami_dra.driver.limits import check_pools, unreadable
    from hami_dra.kube.documents import read_documents
    from hami_dra.kube.protocol import ClusterError

    found = [document for document in read_documents(paths) if document.raw.get("kind") == "ResourceSlice"]
    if not found:
        raise CommandError(f"{', '.join(map(str, paths))}: contains no ResourceSlice")
    violations = [(document, unreadable(document.raw)) for document in found]
    problems = [f"{document}: {violation}" for document, violation in violations if violation is not None]
    good = [document for document, violation in violations if violation is None]
    problems += [f"pool {violation}" for violation in check_pools(document.raw for document in good)]
    by_server = connection != Connection()
    if by_server:
        try:
            problems += asyncio.run(_refused_by_server(good, connection))
        except ClusterError as error:
            raise CommandError(str(error)) from error
    for problem in problems:
        typer.echo(escaped(problem))
    if problems:
        raise typer.Exit(1)
    rest = "" if by_server else " in their pools; with --kubeconfig an API server checks each slice too"
    typer.echo(f"{counted(len(found), 'ResourceSlice')}, no problems{rest}")


async def _refused_by_server(documents: "Sequence[Document]", connection: Connection) -> list[str]:
    """Create each slice as a dry run. Raises ClusterError if the server does not check them."""
    from hami_dra.api.kinds import RESOURCE_SLICE
    from hami_dra.kube.protocol import AlreadyExists, Invalid

    refused: list[str] = []
    async with connection.open() as cluster:
        for document in documents:
            metadata = {key: value for key, value in document.raw["metadata"].items() if key != "resourceVersion"}
            try:
                await cluster.create(RESOURCE_SLICE, {**document.raw, "metadata": metadata}, dry_run=True)
            except AlreadyExists:
                pass  # valid: the server validates before it looks up the name
            except Invalid as error:
                refused.append(f"{document}: {error}")
    return refused


# --- fleet ----------------------------------------------------------------------------------------


def _publish(path: Path, connection: Connection, *, fence: FenceMode, once: bool, remove: bool) -> None:
    import asyncio
    import logging

    from hami_dra.driver.fleet import read_fleet, version_of
    from hami_dra.driver.publisher import NotPublished
    from hami_dra.kube.protocol import ClusterError

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    version = version_of(path)
    file = read_fleet(path)
    if remove:
        file = file.model_copy(update={"nodes": ()})
    try:
        asyncio.run(_keep(path, file, version, connection, fence=fence, once=once or remove))
    except (ClusterError, NotPublished) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("stopped; nodes and slices stay (--remove removes them)", err=True)


async def _keep(
    path: Path, file: "FleetFile", version: "Version | None", connection: Connection, *, fence: FenceMode, once: bool
) -> None:
    import asyncio

    from hami_dra.driver.fleet import Fleet, follow
    from hami_dra.kube.requirements import require_version

    async with connection.open() as cluster:
        await require_version(cluster)
        fleet = Fleet(cluster, file, fence=fence)
        await fleet.sync_once()
        number = sum(group.count for group in file.nodes)
        left = f"{counted(number, 'node')} published" if number else "nothing is left"
        typer.echo(f"fleet {file.name!r}: {left}", err=True)
        if once:
            return
        typer.echo(f"keeping them up to date, and following {path}; Ctrl-C ends", err=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fleet.run())
            tasks.create_task(follow(fleet, path, version))
