"""`hami-dra topology`: the connections between the cards of a node, as a matrix."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.errors import CommandError
from controller.cli.profile_options import ManageProfile, driver_profiles
from controller.cli.service_options import Context, Kubeconfig
from controller.cli.tables import print_wide

if TYPE_CHECKING:
    from hami_dra.api.resource import ResourceClaim, ResourceSlice
    from hami_dra.driver.cards_view import CardView

HELP = """Show how the cards of a node are connected, like `nvidia-smi topo -m` but for any vendor: fast links, PCIe
distance, NUMA nodes and islands; and which cards are free.

Shows the contents of the node's ResourceSlices and of ResourceClaims: the data that the scheduler uses.

Examples:

    hami-dra topology gpu-1

    hami-dra topology gpu-1 --kubeconfig ~/.kube/config

    hami-dra topology --machine dgx-h100

    hami-dra topology -f resourceslices/l40s-pcie-8.yaml
"""

_NARROW = 6
"""Widest column name in characters; with longer names, columns are named by the card's index."""


def register(app: typer.Typer) -> None:
    app.command("topology", help=HELP)(topology)


def topology(
    *,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="The node; without other options its devices are read from the cluster."),
    ] = None,
    machine: Annotated[str | None, typer.Option(help="A reference machine (hami-dra slices --list).")] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--filename", help="Files with ResourceSlices, and ResourceClaims if any."),
    ] = None,
    manage_profile: ManageProfile = None,
    publish_as: Annotated[str, typer.Option(help="With --machine: imitate another driver.")] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    from hami_dra.driver.cards_view import cards_of

    if machine and files:
        raise CommandError("choose one of --machine and --filename")
    claims: Sequence[ResourceClaim] = ()
    if machine:
        slices, where = _of_machine(machine, node, publish_as), f"machine {machine}"
    elif files:
        (slices, claims), where = _of_files(files), ", ".join(map(str, files))
    elif node:
        (slices, claims), where = _of_cluster(node, kubeconfig, context), "the cluster"
    else:
        raise CommandError("name a node, or choose one of --machine and --filename")
    cards = [
        card for card in cards_of(slices, claims, driver_profiles(manage_profile)) if node is None or card.node == node
    ]
    if not cards:
        of_node = f" of node {node}" if node else ""
        raise CommandError(f"{where}: no devices{of_node} are published in ResourceSlices there")
    groups: dict[tuple[str, str], list[CardView]] = {}
    for card in cards:
        groups.setdefault((card.node, card.driver), []).append(card)
    for (name, driver), members in groups.items():
        _draw(name, driver, members, with_use=not machine)
    _legend([card for card in cards if not card.partition])


# --- reading --------------------------------------------------------------------------------------

Found = tuple[list["ResourceSlice"], list["ResourceClaim"]]


def _of_machine(machine: str, node: str | None, publish_as: str) -> "list[ResourceSlice]":
    import msgspec

    from hami_dra.api.resource import ResourceSlice
    from hami_dra.driver.fleet import pools_of
    from hami_dra.driver.simulated import NotPublishedBy, UnknownMachine
    from hami_dra.driver.simulated import machine as simulated
    from hami_dra.driver.slices import slice_bodies
    from hami_dra.vendors.publishing import Unpublishable

    try:
        pools = pools_of(simulated(machine, node or machine.replace(".", "-")), publish_as=publish_as)
    except (UnknownMachine, NotPublishedBy, Unpublishable) as error:
        raise CommandError(str(error)) from error
    return [msgspec.convert(body, ResourceSlice) for body in slice_bodies(pools)]


def _of_files(paths: Sequence[Path]) -> "Found":
    import msgspec

    from controller.cli.manifest_files import read_documents
    from hami_dra.api.resource import ResourceClaim, ResourceSlice
    from hami_dra.driver.limits import unreadable

    slices, claims = [], []
    for document in read_documents(paths):
        kind = document.raw.get("kind")
        try:
            if kind == "ResourceSlice":
                slices.append(msgspec.convert(document.raw, ResourceSlice))
            elif kind == "ResourceClaim":
                claims.append(msgspec.convert(document.raw, ResourceClaim))
        except msgspec.ValidationError as error:
            problem = unreadable(document.raw) if kind == "ResourceSlice" else error
            raise CommandError(f"{document}: {problem}") from error
    return slices, claims


def _of_cluster(node: str, kubeconfig: str | None, context: str | None) -> "Found":
    import asyncio

    from hami_dra.kube.protocol import ClusterError, ConfigError

    try:
        return asyncio.run(_list(node, kubeconfig, context))
    except (ClusterError, ConfigError) as error:
        raise CommandError(str(error)) from error


async def _list(node: str, kubeconfig: str | None, context: str | None) -> "Found":
    from hami_dra.api.kinds import RESOURCE_CLAIM, RESOURCE_SLICE
    from hami_dra.kube.http import connect

    cluster = connect(kubeconfig, context)
    try:
        listing = await cluster.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={node}")
        claims = await cluster.list(RESOURCE_CLAIM)
    finally:
        await cluster.close()
    newest: dict[tuple[str, str], int] = {}
    for item in listing.items:
        key = (item.spec.driver, item.spec.pool.name)
        newest[key] = max(newest.get(key, 0), item.spec.pool.generation)
    current = [
        item for item in listing.items if item.spec.pool.generation == newest[item.spec.driver, item.spec.pool.name]
    ]
    return current, list(claims.items)


# --- drawing --------------------------------------------------------------------------------------


def _draw(node: str, driver: str, members: "Sequence[CardView]", *, with_use: bool) -> None:
    from rich.table import Table

    from hami_dra.driver.cards_view import SELF, connection, free_of

    cards = [member for member in members if not member.partition]
    parts = [member for member in members if member.partition]
    drawn = any(card.links or card.distance for card in cards)
    wide = any(len(card.device) > _NARROW for card in cards)
    table = Table(box=None, title=f"{node}  ({driver})", title_justify="left", pad_edge=False)
    table.add_column("")
    for card in cards if drawn else ():
        table.add_column(str(card.index) if wide and card.index is not None else card.device, justify="center")
    numa, root, island = (
        any(getattr(card, name) not in (None, "") for card in cards) for name in ("numa", "root", "group")
    )
    faulty = any(card.taints for card in cards)
    optional = (
        ("NUMA", numa), ("PCIE ROOT", root), ("ISLAND", island), ("PRODUCT", True), ("FREE", with_use), ("TAINTS", faulty)
    )  # fmt: skip
    for name, is_shown in optional:
        if is_shown:
            table.add_column(name)
    for card in cards:
        words = [connection(card, other) for other in cards if drawn]
        free = free_of(card, [part for part in parts if part.index == card.index])
        texts = (
            "" if card.numa is None else str(card.numa), card.root, card.group or "none", card.product, free,
            ", ".join(card.taints),
        )  # fmt: skip
        table.add_row(
            card.device,
            *(f"[dim]{word}[/dim]" if word == SELF else word for word in words),
            *(text for text, (_, is_shown) in zip(texts, optional, strict=True) if is_shown),
        )
    print_wide(table)
    if not drawn:
        print_wide("this driver publishes neither links nor distances between cards")
    _islands(cards)
    _partitions(cards, parts)
    print_wide("")


def _islands(cards: "Sequence[CardView]") -> None:
    from hami_dra.driver.cards_view import islands_of, spans

    islands = islands_of(cards)
    for group, members in islands.items():
        print_wide(f"island {group}: {len(members)} cards ({spans(members)})")
    alone = [card for card in cards if not card.group]
    if alone and islands:
        print_wide(f"in no island: {spans(alone)}")


def _partitions(cards: "Sequence[CardView]", parts: "Sequence[CardView]") -> None:
    """Print the possible partitions of cards; equal cards share a line."""
    from hami_dra.driver.cards_view import spans

    node_class: dict[str, list[CardView]] = {}
    for card in cards:
        counts: dict[str, int] = {}
        for part in parts:
            if part.index == card.index:
                counts[part.partition] = counts.get(part.partition, 0) + 1
        if counts:
            text = ", ".join(f"{count} x {name}" for name, count in counts.items())
            node_class.setdefault(text, []).append(card)
    for text, members in node_class.items():
        print_wide(f"{spans(members)} can be partitioned into {text}, if these do not overlap")


def _legend(cards: "Sequence[CardView]") -> None:
    from hami_dra.driver.cards_view import LANES, LEGEND, connection

    drawn = [card for card in cards if card.links or card.distance]
    pairs = [(one, two) for one in drawn for two in drawn if (one.node, one.driver) == (two.node, two.driver)]
    used = {LANES if connection(*pair).startswith("L") else connection(*pair) for pair in pairs}
    for word, meaning in LEGEND.items():
        if word in used:
            print_wide(f"{word:5} {meaning}")
