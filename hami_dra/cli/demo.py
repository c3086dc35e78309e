"""`hami-dra demo`: the four patterns on the embedded cluster, as a newcomer sees them first."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from controller.demonstration import Card, Pattern

HELP = """Show the four patterns on an embedded cluster: two nodes with four GPUs each, four pods of 7,500 MiB, two annotations.

The webhook, the controller and the slices are those of a real cluster; only Kubernetes itself is simulated, in memory.

Example:

    hami-dra demo
"""
TITLES = {
    ("binpack", "binpack"): ("A", "fewest nodes, fewest cards", "whole cards stay free for training"),
    ("spread", "binpack"): ("B", "both nodes, fewest cards", "highly available, and whole cards stay free"),
    ("binpack", "spread"): ("C", "fewest nodes, a card for each pod", "cheap, with steady latency"),
    ("spread", "spread"): ("D", "both nodes, a card for each pod", "the steadiest latency"),
}
NEXT = """[bold]On a real cluster[/bold] (Kubernetes 1.36 or newer):
  make cluster                                                 a real Kubernetes here, with simulated GPU nodes
  kubectl apply -f examples/a-node-binpack-gpu-binpack.yaml    then look: kubectl get pods -o wide
Your own manifests: hami-dra simulate -f PATH   ·   as claims: hami-dra convert -f PATH"""
BAR = 14
MIB = 1 << 20


def register(app: typer.Typer) -> None:
    app.command("demo", help=HELP)(demo)


def demo() -> None:
    from rich.console import Console

    asyncio.run(_run(Console(width=max(Console().width, 110))))


async def _run(console: "Console") -> None:
    from controller.demonstration import DemoFailed, running
    from hami_dra.cluster.documents import read_documents
    from hami_dra.cluster.manifests import shipped_folder

    files: list[Path] = sorted(shipped_folder("examples").glob("*.yaml"))
    console.print(
        "[bold]Two nodes with four GPUs each, four pods of 7,500 MiB, two annotations, four different placements.[/bold]"
    )
    with console.status("starting the embedded cluster"):
        started = running()
        demonstration = await started.__aenter__()
    try:
        for document in read_documents(files):
            _print(console, await demonstration.show(document.raw), Path(document.source).name)
    except DemoFailed as error:
        console.print(f"[red]{error}[/red]")
        raise typer.Exit(1) from error
    finally:
        await started.__aexit__(None, None, None)
    console.print()
    console.print(NEXT, highlight=False)


def _print(console: "Console", pattern: "Pattern", source: str) -> None:
    from rich.table import Table

    letter, what, why = TITLES[pattern.node_policy, pattern.device_policy]
    console.print()
    console.rule(
        f"[bold]{letter}[/bold]  nodes: [cyan]{pattern.node_policy}[/cyan], cards: [cyan]{pattern.device_policy}[/cyan]"
        f"  —  {what}: {why}",
        align="left",
    )
    console.print(f"[dim]examples/{source}[/dim]")
    table = Table("POD", "NODE", "UUIDS", "MEMORY", box=None, pad_edge=False, header_style="bold")
    for pod in pattern.pods:
        table.add_row(
            pod.name, pod.node, "\n".join(pod.uuids), "\n".join(f"{amount // MIB} MiB" for amount in pod.memory)
        )
    console.print(table)
    picture = Table(box=None, pad_edge=False, show_header=False)
    for node, cards in pattern.nodes.items():
        picture.add_row(f"[bold]{node}[/bold]", f"{len(cards)} x {cards[0].product}", *(_bar(card) for card in cards))
    console.print(picture)


def _bar(card: "Card") -> "Text":
    """A card: one block of colour for each pod, as wide as its share of the memory."""
    from rich.text import Text

    colours = ("green", "yellow", "magenta", "blue")
    text = Text("[")
    filled = BAR * card.used // card.memory
    for number in range(len(card.pods)):
        share = filled * (number + 1) // len(card.pods) - filled * number // len(card.pods)
        text.append("█" * share, style=colours[number % len(colours)])
    text.append("·" * (BAR - filled) + "]", style="dim")
    return text
