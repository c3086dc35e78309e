"""`hami-dra topology`: how the cards of a node are connected, as a matrix."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hami_dra.cli.errors import CommandError
from hami_dra.cli.tables import print_wide

if TYPE_CHECKING:
    from hami_dra.api.resource import ResourceSlice
    from hami_dra.driver.cards_view import CardView

HELP = """Draw how the cards of a node are connected: fast links, PCIe distance, NUMA nodes and islands.

Shows what is published in the node's ResourceSlices, so it is what the scheduler knows.

Examples:

    hami-dra topology --machine dgx-h100

    hami-dra topology --node gpu-1 --kubeconfig ~/.kube/config

    hami-dra topology -f resourceslices/l40s-pcie-8.yaml
"""


def register(app: typer.Typer) -> None:
    app.command("topology", help=HELP)(topology)


def topology(
    *,
    machine: Annotated[str | None, typer.Option(help="A reference machine (hami-dra slices --list).")] = None,
    files: Annotated[list[Path] | None, typer.Option("-f", "--filename", help="Files with ResourceSlices.")] = None,
    publish_as: Annotated[str, typer.Option(help="With --machine: imitate another driver.")] = "",
    node: Annotated[str | None, typer.Option(help="The node; alone: read from the cluster.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Of the cluster.")] = None,
    context: Annotated[str | None, typer.Option(help="Of the kubeconfig.")] = None,
) -> None:
    from hami_dra.driver.cards_view import cards_of

    if machine and files:
        raise CommandError("choose one of --machine and --filename")
    if machine:
        slices, where = _of_machine(machine, node, publish_as), f"machine {machine}"
    elif files:
        slices, where = _of_files(files), ", ".join(map(str, files))
    elif node:
        slices, where = _of_cluster(node, kubeconfig, context), "the cluster"
    else:
        raise CommandError("choose one of --machine, --filename and --node")
    cards = [card for card in cards_of(slices) if node is None or card.node == node]
    if not cards:
        of_node = f" of node {node}" if node else ""
        raise CommandError(f"{where}: no devices{of_node} are published in ResourceSlices there")
    groups: dict[tuple[str, str], list[CardView]] = {}
    for card in cards:
        groups.setdefault((card.node, card.driver), []).append(card)
    for (name, driver), members in groups.items():
        _draw(name, driver, members)
    _legend(cards)


# --- reading ---------------------------------------------------------------------------------------------------------


def _of_machine(machine: str, node: str | None, publish_as: str) -> "list[ResourceSlice]":
    import msgspec

    from hami_dra.api.resource import ResourceSlice
    from hami_dra.discovery.simulated import UnknownMachine
    from hami_dra.discovery.simulated import machine as simulated
    from hami_dra.discovery.simulated.foreign import NotPublishedBy
    from hami_dra.driver.fleet_nodes import pools_of
    from hami_dra.driver.slices import slice_bodies
    from hami_dra.vendors.publishing import Unpublishable

    try:
        pools = pools_of(simulated(machine, node or machine.replace(".", "-")), publish_as=publish_as)
    except (UnknownMachine, NotPublishedBy, Unpublishable) as error:
        raise CommandError(str(error)) from error
    return [msgspec.convert(body, ResourceSlice) for body in slice_bodies(pools)]


def _of_files(paths: Sequence[Path]) -> "list[ResourceSlice]":
    import msgspec

    from hami_dra.api.resource import ResourceSlice
    from hami_dra.cli.manifest_files import read_documents
    from hami_dra.driver.limits import check_slice

    found = []
    for document in read_documents(paths):
        if document.raw.get("kind") != "ResourceSlice":
            continue
        try:
            found.append(msgspec.convert(document.raw, ResourceSlice))
        except msgspec.ValidationError as error:
            raise CommandError(f"{document}: {check_slice(document.raw)[0]}") from error
    return found


def _of_cluster(node: str, kubeconfig: Path | None, context: str | None) -> "list[ResourceSlice]":
    import asyncio

    from hami_dra.cluster.protocol import ClusterError, ConfigError

    try:
        return asyncio.run(_list(node, kubeconfig, context))
    except (ClusterError, ConfigError) as error:
        raise CommandError(str(error)) from error


async def _list(node: str, kubeconfig: Path | None, context: str | None) -> "list[ResourceSlice]":
    from hami_dra.api.kinds import RESOURCE_SLICE
    from hami_dra.cluster.http import connect

    cluster = connect(str(kubeconfig) if kubeconfig else None, context)
    try:
        listing = await cluster.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={node}")
    finally:
        await cluster.close()
    newest: dict[tuple[str, str], int] = {}
    for item in listing.items:
        key = (item.spec.driver, item.spec.pool.name)
        newest[key] = max(newest.get(key, 0), item.spec.pool.generation)
    return [
        item for item in listing.items if item.spec.pool.generation == newest[item.spec.driver, item.spec.pool.name]
    ]


# --- drawing ---------------------------------------------------------------------------------------------------------


def _draw(node: str, driver: str, cards: "Sequence[CardView]") -> None:
    from rich.table import Table

    from hami_dra.driver.cards_view import SELF, connection, islands_of

    drawn = any(card.links or card.distance for card in cards)
    table = Table(box=None, title=f"{node}  ({driver})", title_justify="left")
    for name in ("", *(card.device for card in cards if drawn)):
        table.add_column(name, justify="center" if name else "left")
    for name in ("NUMA", "PCIE ROOT", "ISLAND", "PRODUCT"):
        table.add_column(name)
    for card in cards:
        words = [connection(card, other) for other in cards if drawn]
        table.add_row(
            card.device,
            *(f"[dim]{word}[/dim]" if word == SELF else word for word in words),
            "" if card.numa is None else str(card.numa),
            card.root,
            card.group or "none",
            card.product,
        )
    print_wide(table)
    if not drawn:
        print_wide("this driver publishes neither links nor distances between cards")
    for group, members in islands_of(cards).items():
        print_wide(f"island {group}: {len(members)} cards ({', '.join(card.device for card in members)})")
    alone = [card.device for card in cards if not card.group]
    if alone:
        print_wide(f"in no island: {', '.join(alone)}")
    print_wide("")


def _legend(cards: "Sequence[CardView]") -> None:
    from hami_dra.driver.cards_view import LANES, LEGEND, connection

    drawn = [card for card in cards if card.links or card.distance]
    pairs = [(one, two) for one in drawn for two in drawn if (one.node, one.driver) == (two.node, two.driver)]
    used = {LANES if connection(*pair).startswith("L") else connection(*pair) for pair in pairs}
    for word, meaning in LEGEND.items():
        if word in used:
            print_wide(f"{word:5} {meaning}")
