"""`hami-dra status --watch`: the view again after each change, on a terminal or as JSON lines."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import typer

from controller.cli.connection import Connection
from controller.cli.errors import CommandError
from controller.cli.output_options import Output, Printing
from controller.cli.state import with_grant
from controller.cli.status_view import Selection, StatusView
from controller.cli.tables import Line, TextLayout, note
from hami_dra.api.printable import escaped
from hami_dra.kube.waiting import wait_at_most

if TYPE_CHECKING:
    from controller.reconcile.runtime import Informers
    from hami_dra.vendors.profiles import DriverProfiles

_PAUSE: Final = 0.5
"""Seconds between two updates: simultaneous changes are one update."""

_PATIENCE: Final = 5.0
"""Seconds after which it is checked that updates still arrive."""


def watch(
    wanted: Selection, connection: Connection, printing: Printing, profiles: "DriverProfiles", namespace: str
) -> None:
    """Show updates until Ctrl-C. `namespace`: of the controller's lease. Raises CommandError."""
    from controller.cli.service import run_service

    output = printing.output
    if output not in {Output.table, Output.wide, Output.json}:
        raise CommandError("--watch prints a table, or with -o json one line for each change")

    if output.is_table and not sys.stdout.isatty():
        raise CommandError("--watch needs a terminal, and stdout is not one: use -o json, one line for each change")
    run_service(_watching(wanted, connection, None if output is Output.json else printing.layout, profiles, namespace))


async def _watching(
    wanted: Selection, connection: Connection, layout: TextLayout | None, profiles: "DriverProfiles", namespace: str
) -> None:
    """Show updates until cancelled; `layout` None: as JSON lines. Raises ClusterError, ConfigError."""
    from controller.cli.leadership import held_places
    from controller.cli.state import NEEDED
    from controller.gangs import OPTIONAL_SOURCES
    from controller.inventory import Inventory
    from controller.reconcile.runtime import Informers, LoopClock, taint_rule_kind
    from hami_dra.api.errors import ConfigError
    from hami_dra.kube.protocol import Forbidden

    async with connection.open() as cluster:
        for kind in NEEDED:
            # A reflector retries indefinitely; report a missing right or a wrong address now.
            try:
                await cluster.list(kind, field_selector="metadata.name=-")
            except Forbidden as error:
                raise ConfigError(with_grant(error)) from error
        inventory = Inventory(profiles=profiles)
        informers = Informers(
            cluster, inventory, LoopClock(), await taint_rule_kind(cluster), gang_sources=OPTIONAL_SOURCES
        )
        changed = asyncio.Event()
        for feed in informers.feeds():
            feed.subscribe(lambda _old, _new: changed.set())

        async def view() -> StatusView:
            held = await held_places(cluster, namespace)
            stores = informers.claims.store, informers.pods.store, informers.nodes.store
            return wanted.of(inventory, *stores, informers.gangs.of, held_places=held)

        async with asyncio.TaskGroup() as group:
            group.create_task(informers.run())
            await _synced(informers)
            if layout is None:
                await _lines(view, changed, informers.problems)
            else:
                await _screen(view, layout, changed, informers.problems)


async def _synced(informers: "Informers") -> None:
    """Wait until all copies are in sync. Raises Unavailable if a kind cannot be read."""
    from hami_dra.kube.protocol import Unavailable

    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await informers.wait_synced()
        except TimeoutError:
            if problems := informers.problems():
                raise Unavailable("; ".join(problems)) from None


async def _lines(
    view: Callable[[], Awaitable[StatusView]], changed: asyncio.Event, problems: Callable[[], list[str]]
) -> None:
    """Print a line for each change. Interruptions of the updates are reported on stderr, once."""
    last, said = "", ""
    while True:
        changed.clear()
        text, trouble = _json(await view()), "; ".join(problems())
        if text != last:
            typer.echo(text)
        if trouble and trouble != said:
            note(trouble)
        last, said = text, trouble
        await _news(changed)


async def _screen(
    view: Callable[[], Awaitable[StatusView]],
    layout: TextLayout,
    changed: asyncio.Event,
    problems: Callable[[], list[str]],
) -> None:
    """Draw on the terminal's alternate screen, which is restored at the end; only after changes."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            changed.clear()
            lines = [Line(f"no updates: {trouble}", "red") for trouble in problems()] + (await view()).lines(layout)
            room = console.size.height
            if len(lines) > room:
                lines[room - 1 :] = [Line(f"... {len(lines) - room + 1} lines more: --by node, or --node, shows less")]
            text = Text("\n", no_wrap=True, overflow="ellipsis").join(
                Text(escaped(line.text), line.colour) for line in lines
            )
            live.update(text, refresh=True)
            await _news(changed)


def _json(view: StatusView) -> str:
    import msgspec

    return escaped(msgspec.json.encode(view.document()).decode())


async def _news(changed: asyncio.Event) -> None:
    """Wait for a change, or until it is time to check that updates still arrive."""
    await wait_at_most(changed, _PATIENCE)
    await asyncio.sleep(_PAUSE)
