"""`hami-dra status`: the cluster's cards, their tenants, packing, and quotas."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from controller.cli.errors import CommandError
from controller.cli.output_options import Output, OutputOption
from controller.cli.profile_options import ManageProfile, driver_profiles
from controller.cli.service_options import SchedulerNamesOption
from controller.cli.state import Connection, Context, Files, Kubeconfig, note, read_versioned
from hami_dra.api import names

if TYPE_CHECKING:
    from controller.cli.container_usage import UsedCard
    from controller.cli.progress import OnProgress
    from controller.cli.state import VersionedState
    from controller.cli.status_tables import Line
    from controller.insight.overview import Overview
    from controller.insight.simulation import PendingPods
    from controller.reconcile.runtime import Informers
    from controller.scheduling.inventory import Inventory
    from controller.scheduling.quota import QuotaLine
    from hami_dra.api.core import Pod
    from hami_dra.api.resource import ResourceClaim
    from hami_dra.vendors.profiles import DriverProfiles

HELP = """Show the cards of the cluster: memory, cores and shares in use, health, and the pods that hold them.

Reads the cluster, or files such as those of hami-dra snapshot; changes nothing. Needs the rights of the
ClusterRole hami-dra-viewer.

Examples:

    hami-dra status

    hami-dra status --by node --vendor nvidia

    hami-dra status --by namespace -o json

    hami-dra status --node node-1 --watch

    hami-dra status -n team-a

    hami-dra status --quota

    hami-dra status --pending

    hami-dra status --usage -n team-a

    hami-dra status -f resourceslices/
"""

_PAUSE: Final = 0.5
"""Seconds between two updates of --watch: simultaneous changes are one update."""

_PATIENCE: Final = 5.0
"""Seconds after which --watch checks that updates still arrive."""


class By(StrEnum):
    card = "card"
    node = "node"
    namespace = "namespace"


def register(app: typer.Typer) -> None:
    app.command("status", help=HELP)(status)


def status(
    *,
    by: Annotated[By, typer.Option("--by", help="One line for each of these.")] = By.card,
    vendor: Annotated[
        list[str] | None,
        typer.Option(help="Only cards of this vendor (nvidia, metax, ...), or of this driver; may be repeated."),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="Only cards of this node; may be repeated.")] = None,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Only cards, shares and quotas of this namespace.")
    ] = None,
    quota: Annotated[bool, typer.Option("--quota", help="Show how much of the quotas for cards is used.")] = False,
    pending: Annotated[
        bool, typer.Option("--pending", help="Show the pods that wait for cards and what each of them waits for.")
    ] = False,
    scheduler_name: SchedulerNamesOption = None,
    usage: Annotated[
        bool,
        typer.Option(
            "--usage",
            help="Also show what containers use of shared cards, as their drivers say (right: get pods/proxy).",
        ),
    ] = False,
    driver_namespace: Annotated[
        str, typer.Option(help="Namespace of the node drivers, for --usage.")
    ] = names.SYSTEM_NAMESPACE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep showing changes until Ctrl-C; with -o json, one line for each.")
    ] = False,
    output: OutputOption = Output.table,
    manage_profile: ManageProfile = None,
    files: Files = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    connection = Connection(kubeconfig, context)
    profiles = driver_profiles(manage_profile)
    wanted = _Selection(by, vendor or [], node or [], namespace, quota=quota)
    if watch and files:
        raise CommandError("--watch needs a live cluster, because files do not change: leave out --watch or -f")
    if watch and pending:
        raise CommandError("--pending decides on every pod that waits: leave out --watch")
    if usage and (watch or files):
        raise CommandError("--usage asks the drivers of a live cluster once: leave out --watch and -f")
    if watch:
        _watch(wanted, connection, output, profiles)
        return
    from controller.cli.progress import Progress
    from controller.cli.seen import seen
    from hami_dra.api import kinds

    with Progress() as progress:
        found = read_versioned(files, connection, progress=progress)
        state = seen(found.documents, profiles)
        judged = _pending(found, namespace, scheduler_name, profiles, progress) if pending else None
    for text in state.notes:
        note(text)
    picture = wanted.of(state.inventory, state.of(kinds.RESOURCE_CLAIM), state.of(kinds.POD))
    picture.pending = judged
    if usage:
        from controller.cli.container_usage import read_usage, used_cards

        picture.used = used_cards(picture.overview, read_usage(connection, driver_namespace), namespace)
    if output is Output.json:
        typer.echo(picture.json(indent=2))
    else:
        _print(picture.lines())


def _pending(
    found: "VersionedState",
    namespace: str | None,
    scheduler_names: list[str] | None,
    profiles: "DriverProfiles",
    progress: "OnProgress",
) -> "PendingPods":
    """Decide on the pods that wait. Raises CommandError."""
    from controller.insight.simulation import BadManifest, SimulationSettings, pending_pods

    settings = SimulationSettings(
        profiles=profiles,
        kubernetes=found.kubernetes,
        scheduler_names=frozenset(scheduler_names or ["default-scheduler"]),
    )
    try:
        return pending_pods(
            found.documents,
            settings,
            may_be_meant=lambda key: namespace is None or key.startswith(f"{namespace}/"),
            on_pod=partial(progress, "deciding on pods"),
        )
    except BadManifest as error:
        raise CommandError(str(error)) from error


class _Selection:
    """The part of the cluster to show."""

    def __init__(self, by: By, vendors: list[str], nodes: list[str], namespace: str | None, *, quota: bool) -> None:
        self.by = by
        self.quota = quota
        self.namespace = namespace
        self._vendors = vendors
        self._nodes = nodes

    def of(self, inventory: "Inventory", claims: "Iterable[ResourceClaim]", pods: "Iterable[Pod]") -> "_Picture":
        """Return the requested view. Raises CommandError if a named node or vendor does not
        exist.
        """
        import msgspec

        from controller.insight.overview import namespaces, overview
        from controller.scheduling.quota import quota_lines

        vendors = self._checked_vendors(inventory)
        found = overview(inventory, claims, pods, nodes=self._nodes or None, vendors=vendors)
        missing = set(self._nodes) - {each.node for each in found.nodes}
        for name in sorted(missing):
            there = inventory.nodes.index_of(name) >= 0
            raise CommandError(
                f"--node {name}: "
                + ("it has no such cards: no driver's ResourceSlice names it" if there else "there is no such node")
            )
        if self.namespace is not None:
            cards = tuple(
                card for card in found.cards if any(each.namespace == self.namespace for each in card.tenants)
            )
            on = {card.node for card in cards}
            found = msgspec.structs.replace(
                found,
                cards=cards,
                nodes=tuple(each for each in found.nodes if each.node in on),
                namespaces=tuple(each for each in namespaces(cards) if each.namespace == self.namespace),
            )
        if vendors is not None:
            found = msgspec.structs.replace(
                found, packing=tuple(each for each in found.packing if each.vendor in vendors)
            )
        quotas = quota_lines(inventory, None if self.namespace is None else [self.namespace])
        return _Picture(self, found, quotas)

    def _checked_vendors(self, inventory: "Inventory") -> set[str] | None:
        if not self._vendors:
            return None
        from controller.insight.overview import CardTable, vendor_name

        table = CardTable(inventory)
        table.refresh()
        drivers = [table.drivers[number] for number in table.ordered_drivers()]
        known = {driver: vendor_name(driver) for driver in drivers} | {
            vendor_name(each): vendor_name(each) for each in drivers
        }
        for name in self._vendors:
            if name not in known:
                choices = ", ".join(dict.fromkeys(vendor_name(each) for each in drivers)) or "none"
                raise CommandError(f"--vendor {name}: no card of it is published; vendors with cards here: {choices}")
        return {known[name] for name in self._vendors}


class _Picture:
    """The requested view of the cluster at one moment."""

    def __init__(self, wanted: _Selection, overview: "Overview", quotas: "list[QuotaLine]") -> None:
        self.overview = overview
        self._wanted = wanted
        self._quotas = quotas
        self.pending: PendingPods | None = None
        """With --pending."""
        self.used: list[UsedCard] | None = None
        """With --usage."""

    def document(self) -> dict[str, Any]:
        import msgspec

        found: dict[str, Any] = msgspec.to_builtins(self.overview, str_keys=True)
        pending = {"pending": msgspec.to_builtins(self.pending, str_keys=True)} if self.pending is not None else {}
        usage = {"usage": [each.document() for each in self.used]} if self.used is not None else {}
        return {**found, "quotas": msgspec.to_builtins(self._quotas), **pending, **usage}

    def json(self, indent: int = 0) -> str:
        """Return JSON; without `indent`, in one line."""
        import msgspec

        text = msgspec.json.encode(self.document())
        return msgspec.json.format(text, indent=indent or -1).decode()

    def lines(self) -> "list[Line]":
        from controller.cli import status_tables

        if self._wanted.quota:
            return status_tables.quotas(self._quotas)
        if self.pending is not None:
            return status_tables.pending(self.pending)
        rows: Callable[[Overview], list[Line]] = {
            By.card: status_tables.cards,
            By.node: status_tables.nodes,
            By.namespace: status_tables.namespaces,
        }[self._wanted.by]
        usage = [] if self.used is None else status_tables.usage(self.used)
        return [*rows(self.overview), *usage, *status_tables.summary(self.overview)]


def _print(lines: "list[Line]") -> None:
    """Print the lines, with colours only on a terminal."""
    typer.echo("\n".join(typer.style(line.text, fg=line.colour) if line.colour else line.text for line in lines))


# --- watching -------------------------------------------------------------------------------------


def _watch(wanted: _Selection, connection: Connection, output: Output, profiles: "DriverProfiles") -> None:
    import sys

    from controller.cli.service import run_service

    if output is Output.table and not sys.stdout.isatty():
        raise CommandError("--watch needs a terminal, and stdout is not one: use -o json, one line for each change")
    run_service(_watching(wanted, connection, output, profiles))


async def _watching(wanted: _Selection, connection: Connection, output: Output, profiles: "DriverProfiles") -> None:
    """Show updates until cancelled. Raises ClusterError, ConfigError."""
    from controller.cli.state import NEEDED
    from controller.reconcile.runtime import Informers, LoopClock, taint_rule_kind
    from controller.scheduling.inventory import Inventory
    from hami_dra.kube.http import connect
    from hami_dra.kube.protocol import ConfigError

    cluster = connect(connection.kubeconfig, connection.context)
    try:
        for kind in NEEDED:
            # A reflector retries indefinitely; report a missing right or a wrong address now.
            await cluster.list(kind, field_selector="metadata.name=-")
        inventory = Inventory(profiles=profiles)
        informers = Informers(cluster, inventory, LoopClock(), await taint_rule_kind(cluster))
        changed = asyncio.Event()
        for feed in informers.feeds():
            feed.subscribe(lambda _old, _new: changed.set())

        def picture() -> _Picture:
            try:
                return wanted.of(inventory, informers.claims.store, informers.pods.store)
            except CommandError as error:
                # unwrapped from the task group, as `run_service` expects it
                raise ConfigError(str(error)) from error

        async with asyncio.TaskGroup() as group:
            group.create_task(informers.run())
            await _synced(informers)
            draw = _lines if output is Output.json else _screen
            await draw(picture, changed, informers.problems)
    finally:
        await cluster.close()


async def _synced(informers: "Informers") -> None:
    """Wait until all copies are in sync.

    Raises Unavailable if a kind cannot be read: a reflector itself never gives up.
    """
    from hami_dra.kube.protocol import Unavailable

    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await informers.wait_synced()
        except TimeoutError:
            if problems := informers.problems():
                raise Unavailable("; ".join(problems)) from None


async def _lines(picture: Callable[[], _Picture], changed: asyncio.Event, problems: Callable[[], list[str]]) -> None:
    """Print a line for each change. Interruptions of the updates are reported on stderr, once."""
    last, said = "", ""
    while True:
        changed.clear()
        text, trouble = picture().json(), "; ".join(problems())
        if text != last:
            typer.echo(text)
        if trouble and trouble != said:
            note(trouble)
        last, said = text, trouble
        await _news(changed)


async def _screen(picture: Callable[[], _Picture], changed: asyncio.Event, problems: Callable[[], list[str]]) -> None:
    """Draw on the terminal's alternate screen, which is restored at the end; only after changes."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from controller.cli.status_tables import Line

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            changed.clear()
            lines = [Line(f"no updates: {trouble}", "red") for trouble in problems()] + picture().lines()
            room = console.size.height
            if len(lines) > room:
                lines[room - 1 :] = [Line(f"... {len(lines) - room + 1} lines more: --by node, or --node, shows less")]
            text = Text("\n", no_wrap=True, overflow="ellipsis").join(Text(line.text, line.colour) for line in lines)
            live.update(text, refresh=True)
            await _news(changed)


async def _news(changed: asyncio.Event) -> None:
    """Wait for a change, or until it is time to check that updates still arrive."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            await changed.wait()
    await asyncio.sleep(_PAUSE)
