"""Show the four patterns on an embedded cluster: two nodes with four GPUs each, four pods of 7,500
MiB, two annotations.

The webhook, the controller and the slices are those of a real cluster; only Kubernetes itself is
simulated, in memory.

Example:
    hami-dra demo
"""

import asyncio
import os
import shutil
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from controller.cli.program import PROGRAM, program
from controller.cli.tables import Line, TextTable, counted, print_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from controller.cli.demonstration import Pattern
    from controller.views.overview import Card

TITLES: Final = {
    ("binpack", "binpack"): ("A", "Fewest nodes, fewest devices", "whole devices and nodes stay free for training"),
    ("spread", "binpack"): ("B", "Both nodes, fewest devices", "a node may fail, and whole devices stay free"),
    ("binpack", "spread"): ("C", "Fewest nodes, a device for each pod", "cheap, with steady latency"),
    ("spread", "spread"): ("D", "Both nodes, a device for each pod", "a node may fail, with the steadiest latency"),
}
WIDTH: Final = 100
"""Width of the tables; a narrower terminal wraps them."""
BAR: Final = 13
"""Characters for a card. Blocks are rounded down, so a bar shows slightly more free space than there is."""
MIB: Final = 1 << 20
COLOURS: Final = ("green", "yellow", "magenta", "blue")


def demo() -> None:
    from rich.console import Console

    from hami_dra.kube.manifests import shipped_folder

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    console.print(
        "[bold]Four pods of 7,500 MiB on two nodes with four GPUs each: two annotations, four placements.[/bold]\n"
        "A bar is a device, a block in it is a pod, as wide as its share of the device's memory."
    )
    asyncio.run(_show(console))
    console.print()
    print_lines(_next(in_checkout=(shipped_folder("examples").parent / "Makefile").exists()))


async def _show(console: "Console") -> None:
    from controller.cli.demonstration import DemoFailed, running
    from hami_dra.kube.documents import read_documents
    from hami_dra.kube.manifests import shipped_folder

    files: list[Path] = sorted(shipped_folder("examples").glob("*.yaml"))
    async with running() as demonstration:
        try:
            for document in read_documents(files):
                _print(console, await demonstration.show(document.raw), Path(document.source).name)
        except DemoFailed as error:
            typer.echo(f"hami-dra: {error}", err=True)
            raise typer.Exit(1) from error


def _print(console: "Console", pattern: "Pattern", source: str) -> None:
    letter, what, why = TITLES[pattern.node_policy, pattern.device_policy]
    console.print()
    console.rule(
        f"[bold]{letter}[/bold]  nodes: [cyan]{pattern.node_policy}[/cyan], devices: [cyan]{pattern.device_policy}[/cyan]",
        align="left",
    )
    console.print(f"{what}: {why}.\n[dim]examples/{source}[/dim]\n")
    table = TextTable("POD", "NODE", "UUIDS", ">MEMORY")
    cards = {card.id: card for card in pattern.cards}
    for pod in pattern.pods:
        name = pod.pod.partition("/")[2]
        held = [
            (card, tenant)
            for card in map(cards.__getitem__, pod.devices)
            for tenant in card.tenants
            if tenant.pod == name
        ]
        table.add(
            name, pod.node, [card.uuid for card, _ in held], [f"{tenant.memory // MIB} MiB" for _, tenant in held]
        )
    print_lines(table.lines())
    console.print()
    console.print(_picture(pattern, ascii_only=console.options.ascii_only))
    used = [card for card in pattern.cards if card.tenants]
    nodes = len({card.node for card in used})
    console.print(f"{len(pattern.pods)} pods on {counted(nodes, 'node')} and {counted(len(used), 'device')}")


def _picture(pattern: "Pattern", *, ascii_only: bool) -> "Table":
    from rich.table import Table

    picture = Table(box=None, pad_edge=False, show_header=False)
    for node, group in groupby(pattern.cards, key=lambda card: card.node):
        cards = list(group)
        bars = (_bar(card, "#=" if ascii_only else "█▓", "." if ascii_only else "·") for card in cards)
        picture.add_row(f"[bold]{node}[/bold]", f"{len(cards)} x {cards[0].product}", *bars)
    return picture


def _bar(card: "Card", blocks: str, free: str) -> "Text":
    """Return a card's bar: a block for each pod. Neighbours differ in colour and shade."""
    from rich.text import Text

    text = Text("[")
    pods = len(card.tenants)
    share = BAR * card.memory_used // (card.memory_total * pods) if pods else 0
    for number in range(pods):
        text.append(blocks[number % len(blocks)] * share, style=COLOURS[number % len(COLOURS)])
    text.append(free * (BAR - share * pods), style="dim")
    return text.append("]")


def _next(*, in_checkout: bool) -> list[Line]:
    """Return what to do next. `in_checkout`: the Makefile and docs/ are at hand."""
    command = program() if shutil.which(PROGRAM) else os.path.relpath(sys.argv[0])
    table = TextTable("Next", "")
    if in_checkout:
        table.add("make cluster", "a real Kubernetes to play with: simulated GPU nodes")
    table.add(f"{command} simulate -f PATH", "where the pods of your manifests would go, and why")
    table.add(f"{command} convert -f PATH", "your nvidia.com/gpu manifests as ResourceClaims")
    if in_checkout:
        table.add("docs/policies.md", "what the two annotations do, with numbers")
    return table.lines()
