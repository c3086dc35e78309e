"""The controller: one object that runs until it is cancelled. Created by the CLI, demo and tests.

    await Controller(cluster, settings, conversion=..., ...).run()

Standby and leader keep the same local copies; only the leader acts (`term`). Losing the lease ends
a term, not the process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from msgspec import Struct

from controller.decide import decide as default_decide
from controller.gangs import Decide, GangKey
from controller.inventory import Inventory
from controller.reconcile.fence import require_fenceable
from controller.reconcile.observability import Scrape, SideServices, watched
from controller.reconcile.runtime import (
    Clock,
    Context,
    DecisionLog,
    Events,
    Heartbeat,
    HeldBack,
    Informers,
    LeadershipLost,
    LoopClock,
    Metrics,
    Mode,
    Settings,
    UninstallWatch,
    Watchdog,
    Writer,
    taint_rule_kind,
    watch_name,
)
from controller.reconcile.term import Helper, Term
from controller.views.overview import Held
from controller.webhook import LegacyConversion
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import DeviceTaintRule
from hami_dra.httpserver import Exposition, serving
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.guard import first_failure
from hami_dra.kube.lease import Election, LeaderElector, NoElection
from hami_dra.kube.protocol import Cluster, ServerVersion
from hami_dra.kube.requirements import require_version
from hami_dra.kube.side_thread import run_in

log = logging.getLogger(__name__)


class Process(Struct, frozen=True):
    """The controller's environment in its process."""

    listen: tuple[str, int] | None = None
    """(host, port) of the health and metrics server."""
    side: SideServices | None = None
    """Side thread for lease and health; None: the controller's own loop, for tests and the demo."""
    on_synced: Callable[[], None] = lambda: None


_ALONE: Final = Process()


@dataclass(eq=False)
class Controller:
    """The controller. `elector_clock`: see `LeaderElector`."""

    cluster: Cluster
    settings: Settings
    _: KW_ONLY
    conversion: LegacyConversion | None = None
    helpers: tuple[Helper, ...] = ()
    clock: Clock = field(default_factory=LoopClock)
    elector_clock: Callable[[], float] = boot_clock
    decide: Decide = default_decide
    process: Process = _ALONE

    def __post_init__(self) -> None:
        drivers = self.settings.drivers
        self.metrics = Metrics()
        self.inventory = Inventory(profiles=drivers.profiles)
        self.metrics.begin(drivers.managed, exclusive=drivers.mode is Mode.EXCLUSIVE)
        self.decision_log = DecisionLog()
        self.informers: Informers | None = None
        self.scrape: Scrape | None = None
        self.is_leading = False
        self._heartbeat = Heartbeat()
        self._term: Term | None = None

    def held_for(self, key: GangKey | str) -> Held | None:
        """Return what is kept for a gang, or for the pod with a UID; None: nothing, or this is no leader."""
        return self._term.held_for(key) if self._term is not None else None

    async def run(self) -> None:
        """Run until cancelled. Raises UnsupportedKubernetes, ConfigError, ClusterError at start."""
        version = await require_version(self.cluster)
        self.inventory.set_version(version.major, version.minor)
        rule_kind = await taint_rule_kind(self.cluster)
        if self.settings.drivers.mode is Mode.EXCLUSIVE:
            require_fenceable(self.settings.drivers, rule_kind)
        informers = self.informers = self._create_informers(rule_kind, version)
        self._heartbeat.handling, self._heartbeat.term_reading = informers.handling, self.inventory.rules.term_reading
        for feed in informers.feeds():
            self.metrics.internal_errors.labels(watch_name(feed.kind))
        scrape = self.scrape = Scrape(
            self.metrics,
            self.inventory,
            informers,
            self.settings.observability,
            now=self.clock.wall,
            leads=lambda: self.is_leading,
        )
        events = Events(self.cluster, self.clock, self.metrics, self.settings.observability)
        async with AsyncExitStack() as stack:
            elector = self._elector() if self.settings.leadership.leader_election else None
            await self._serve(stack, Exposition(self.metrics, scrape.blocks), elector)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            if self.process.side is not None:
                beating = self._heartbeat.run(self._unready, self.metrics.loop_stalled.inc)
                group.create_task(beating, name="heartbeat")
            group.create_task(informers.run(), name="informers")
            group.create_task(events.run(), name="events")
            group.create_task(self._report_synced(informers), name="sync")
            leaving = UninstallWatch(self.cluster, self.settings.leadership, self.clock)
            group.create_task(leaving.run(), name="leaving")
            election: Election = elector or NoElection()
            group.create_task(self._elect(informers, events, election, leaving), name="elect")

    def _create_informers(self, rule_kind: Kind[DeviceTaintRule] | None, version: ServerVersion) -> Informers:
        informers = Informers(
            self.cluster,
            self.inventory,
            self.clock,
            rule_kind,
            count=self.metrics.internal_error,
            gang_sources=self.settings.scheduling.gang_sources,
            evicts=self.settings.evicts,
        )
        informers.gangs.set_version(version.major, version.minor)
        return informers

    async def _serve(self, stack: AsyncExitStack, exposition: Exposition, elector: LeaderElector | None) -> None:
        """Serve health until the stack ends, and supervise the main loop if there is a side thread."""
        if self.process.side is not None:
            here = asyncio.get_running_loop()
            watchdog = Watchdog(
                self._heartbeat, self.settings.leadership, elector, wall=self.clock.wall, end=self.process.side.end
            )
            heartbeat = self._heartbeat

            def serve() -> AbstractAsyncContextManager[int | None]:
                return watched(watchdog, heartbeat, self.process.listen, lambda: run_in(here, exposition.render))

            bound = await stack.enter_async_context(self.process.side.thread.entered(serve))
        elif self.process.listen is not None:
            bound = await stack.enter_async_context(
                serving(*self.process.listen, render=exposition.render, unready=self._unready)
            )
        else:
            return
        if bound is not None:
            log.info("health and metrics on port %d", bound)

    def _unready(self) -> list[str]:
        if self.informers is None or not self.informers.is_synced:
            return ["not all objects are listed yet"]
        return self.informers.problems()

    async def _report_synced(self, informers: Informers) -> None:
        await informers.wait_synced()
        log.info(
            "synced: %d nodes, %d pods, %d claims",
            len(informers.nodes.store),
            len(informers.pods.store),
            len(informers.claims.store),
        )
        self.process.on_synced()

    # --- leading ----------------------------------------------------------------------------------

    def _elector(self) -> LeaderElector:
        settings, side = self.settings.leadership, self.process.side
        return LeaderElector(
            self.cluster if side is None else side.cluster,
            settings.namespace,
            settings.lease_name,
            timings=settings.lease,
            clock=self.elector_clock,
            sleep=self.clock.sleep,
            wall=self.clock.wall,
            side=side.thread if side is not None else None,
        )

    async def _elect(self, informers: Informers, events: Events, election: Election, leaving: UninstallWatch) -> None:
        if self.settings.leadership.leader_election:
            await leaving.wait_back()
        # without election, the right to read leases is not required: the watch may never be in sync
        while True:
            # Returns during an uninstall; the lease is then free, so that uninstall sees it.
            await election.run(lambda: _first_of(lambda: self._lead(informers, events, election), leaving.wait_leaving))
            await leaving.wait_back()

    async def _lead(self, informers: Informers, events: Events, election: Election) -> None:
        """Run one term after the other until cancelled, or the lease is lost; the elector then
        starts again.

        A term ends when the cluster goes back to a past state (etcd restored), because what the
        term remembers may no longer have happened.
        """
        while True:
            if not await self._run_term_until_rewound(informers, events, election):
                return
            await informers.wait_current()

    async def _run_term_until_rewound(self, informers: Informers, events: Events, election: Election) -> bool:
        """Return whether the term ended because the cluster went back to a past state."""
        rewound = asyncio.ensure_future(informers.wait_rewound())
        await _first_of(lambda: self._run_term(informers, events, election), lambda: rewound)
        return not rewound.cancelled()

    async def _run_term(self, informers: Informers, events: Events, election: Election) -> None:
        """Run one term, until it is cancelled or the lease is lost.

        It must not wait to be cancelled: a task group that is ending because of an error swallows a
        cancellation.
        """
        context = Context(
            cluster=self.cluster,
            writer=Writer(self.cluster, election.holds, self.settings.leadership.write_timeout),
            informers=informers,
            inventory=self.inventory,
            settings=self.settings,
            clock=self.clock,
            events=events,
            metrics=self.metrics,
        )
        self.is_leading = self._heartbeat.in_term = True
        self.metrics.lead(leads=True)
        try:
            self._term = Term(
                context,
                decide=self.decide,
                decision_log=self.decision_log,
                held_back=HeldBack(
                    election, self._heartbeat, self.clock, self.metrics, pod=informers.pod, gangs=informers.gangs
                ),
                conversion=self.conversion,
                helpers=self.helpers,
                election=election,
            )
            await self._term.run()
        except* LeadershipLost as lost:
            log.warning("%s", first_failure(lost))
        finally:
            self._term = None
            self.is_leading = self._heartbeat.in_term = False
            self.metrics.lead(leads=False)


async def _first_of(*starts: Callable[[], Awaitable[None]]) -> None:
    """Run concurrently; when one ends, or this is cancelled, all end."""
    tasks = [asyncio.ensure_future(start()) for start in starts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
