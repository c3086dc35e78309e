"""Show how the devices of each node are connected, like `nvidia-smi topo -m` but for any vendor:
fast links, PCIe distance, NUMA nodes and islands; and which devices are free.

Shows the contents of ResourceSlices and ResourceClaims: the data that the scheduler uses.

Examples:
    hami-dra topology
    hami-dra topology gpu-1
    hami-dra topology -l pool=a100
    hami-dra topology --machine dgx-h100
    hami-dra topology -f resourceslices/l40s-pcie-8.yaml
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli import completion_values as values
from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.output_options import Printing
from controller.cli.profile_options import driver_profiles
from controller.cli.tables import Line, TextLayout, TextTable, counted
from controller.settings.common import ManageProfile
from controller.views.columns import Column, text_column
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from hami_dra.driver.cards_view import CardView

_NARROW = 6
"""Widest column name in characters; with longer names, columns are named by the card's index."""


def topology(
    *,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="One node; default: all nodes of the cluster, or of the source that another option names.",
            autocompletion=values.nodes,
        ),
    ] = None,
    machine: Annotated[str | None, Option("A reference machine (hami-dra slices --list).", values="machines")] = None,
    selector: Annotated[str, Option("All nodes with these labels.", flags=("-l", "--selector"), metavar="LABELS")] = "",
    files: Annotated[
        tuple[Path, ...],
        Option("Files with ResourceSlices, and with ResourceClaims and Nodes if any.", flags=("-f", "--filename")),
    ] = (),
    manage_profile: ManageProfile = (),
    publish_as: Annotated[str, Option("With --machine: imitate another driver.", metavar="DRIVER")] = "",
    printing: Printing,
    connection: Connection,
) -> None:
    from controller.cli.topology_reading import Wanted, of_cluster, of_files, of_machine
    from hami_dra.driver.cards_view import cards_of

    if machine and (files or selector):
        raise CommandError("--machine is a source of its own: leave out --filename and --selector")
    if node and selector:
        raise CommandError("-l chooses nodes by their labels: leave out -l, or the name of the node")
    if machine:
        found = of_machine(machine, node, publish_as)
    else:
        wanted = Wanted(node, selector)
        found = of_files(files, wanted) if files else of_cluster(wanted, connection)
    cards = [
        card
        for card in cards_of(found.slices, found.claims, driver_profiles(manage_profile))
        if found.nodes is None or card.node in found.nodes
    ]
    if not cards:
        of_nodes = f" of node {node}" if node else f" of nodes with the labels {selector}" if selector else ""
        raise CommandError(f"{found.where}: no devices{of_nodes} are published in ResourceSlices there")
    groups: dict[tuple[str, str], list[CardView]] = {}
    for card in cards:
        groups.setdefault((card.node, card.driver), []).append(card)

    def drawn(layout: TextLayout) -> Iterator[Line]:
        for (name, driver), members in groups.items():
            yield from _drawn(name, driver, members, layout, with_use=not machine)
        yield from _legend([card for card in cards if not card.partition])

    printing.show(drawn, lambda: (f"{card.node}/{card.device}" for card in cards), lambda: cards)


def _drawn(node: str, driver: str, members: "Sequence[CardView]", layout: TextLayout, *, with_use: bool) -> list[Line]:
    """Return the matrix of one node's devices of one driver, and what is known of them as a whole."""
    cards = [member for member in members if not member.partition]
    parts = [member for member in members if member.partition]
    lines = [Line(f"{node}  ({driver})", "bold"), *_matrix(cards, parts, with_use=with_use).lines(layout)]
    if not _is_connected(cards):
        lines.append(Line("this driver publishes neither links nor distances between devices"))
    return [*lines, *_islands(cards), *_partitions(cards, parts), Line("")]


def _is_connected(cards: "Sequence[CardView]") -> bool:
    return any(card.links or card.distance for card in cards)


def _matrix(cards: "Sequence[CardView]", parts: "Sequence[CardView]", *, with_use: bool) -> TextTable:
    from hami_dra.driver.cards_view import connection, free_of

    wide = any(len(card.device) > _NARROW for card in cards)
    columns: list[Column[CardView]] = [text_column("", lambda card: card.device)]
    for other in cards if _is_connected(cards) else ():
        name = str(other.index) if wide and other.index is not None else other.device
        columns.append(Column(name, head=name, text=partial(connection, other=other)))
    optional: tuple[tuple[bool, Column[CardView]], ...] = (
        (
            any(card.numa is not None for card in cards),
            text_column("numa", lambda card: "" if card.numa is None else str(card.numa)),
        ),
        (any(card.root for card in cards), text_column("pcie root", lambda card: card.root)),
        (any(card.group for card in cards), text_column("island", lambda card: card.group or "none")),
        (True, text_column("product", lambda card: card.product)),
        (
            with_use,
            text_column("free", lambda card: free_of(card, [each for each in parts if each.index == card.index])),
        ),
        (any(card.taints for card in cards), text_column("taints", lambda card: ", ".join(card.taints))),
    )
    return TextTable.of([*columns, *(column for is_shown, column in optional if is_shown)], cards)


def _islands(cards: "Sequence[CardView]") -> Iterator[Line]:
    from hami_dra.driver.cards_view import islands_of, spans

    islands = islands_of(cards)
    for group, members in islands.items():
        yield Line(f"island {group}: {counted(len(members), 'card')} ({spans(members)})")
    alone = [card for card in cards if not card.group]
    if alone and islands:
        yield Line(f"in no island: {spans(alone)}")


def _partitions(cards: "Sequence[CardView]", parts: "Sequence[CardView]") -> Iterator[Line]:
    """Yield the possible partitions of cards; equal cards share a line."""
    from hami_dra.driver.cards_view import spans

    alike: dict[str, list[CardView]] = {}
    for card in cards:
        counts = Counter(part.partition for part in parts if part.index == card.index)
        if counts:
            text = ", ".join(f"{count} x {name}" for name, count in counts.items())
            alike.setdefault(text, []).append(card)
    for text, members in alike.items():
        yield Line(f"{spans(members)} can be partitioned into {text}, if these do not overlap")


def _legend(cards: "Sequence[CardView]") -> Iterator[Line]:
    from hami_dra.driver.cards_view import LANES, LEGEND, connection

    drawn = [card for card in cards if card.links or card.distance]
    pairs = [(one, two) for one in drawn for two in drawn if (one.node, one.driver) == (two.node, two.driver)]
    used = {LANES if connection(*pair).startswith("L") else connection(*pair) for pair in pairs}
    for word, meaning in LEGEND.items():
        if word in used:
            yield Line(f"{word:5} {meaning}")
