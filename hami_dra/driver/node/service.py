"""The node driver: one object that runs until it is cancelled. Created by the CLI and by tests.

    await NodeDriver(cluster, settings, backends, plugin).run()

In: a cluster, a back end per vendor, and a factory of the plugin that serves kubelet for one
driver. Out: correct slices, kept up to date; events on the Node; a plugin per driver. One loop
decides: every change (hardware, the Node, claims, the fence) wakes it, and it computes again what
each driver offers. Writing is left to the publisher.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

from hami_dra.api.core import Node
from hami_dra.api.hardware import Card
from hami_dra.api.kinds import NODE
from hami_dra.api.resource import ResourceSlice
from hami_dra.discovery.backend import Backend
from hami_dra.driver.fence import QUIET, Fence
from hami_dra.driver.node.claims import HeldClaims
from hami_dra.driver.node.damping import FlapDamper
from hami_dra.driver.node.driver_runtime import DriverRuntime, Surroundings, empty_pool
from hami_dra.driver.node.events import NodeEvents
from hami_dra.driver.node.hardware import Hardware
from hami_dra.driver.node.leftovers import RESULTS, LeftoverSources, LeftoverWatch
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.monitoring import Monitoring
from hami_dra.driver.node.notices import Notices
from hami_dra.driver.node.plugin import has_resources_of_plugins, offered_by_plugin
from hami_dra.driver.node.settings import NodeSettings, OnExit
from hami_dra.driver.node.threads import InThread, in_thread
from hami_dra.driver.node.usage_watch import UsageWatch
from hami_dra.driver.publisher import NotPublished, PoolKey, Publisher
from hami_dra.driver.taints import is_fenced
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.protocol import Cluster
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.requirements import require_version
from hami_dra.monitor.readings import CardSampler, Reading
from hami_dra.monitor.usage import UsageReader
from hami_dra.vendors.registry import plugin_of

log = logging.getLogger(__name__)

_BREATH: Final = 0.2
"""Minimum seconds between two decisions: a burst of changes is one change of a slice."""
_WITHDRAW_SECONDS: Final = 10.0
_SELDOM: Final = 300.0
"""Seconds between polls of the fence while nothing urgent depends on them."""


class Plugin(Protocol):
    """The server of kubelet's calls for one driver."""

    registered: asyncio.Event
    """Set while it is registered with kubelet."""

    async def run(self) -> None:
        """Serve until cancelled; then finish kubelet's pending calls."""


MakePlugin = Callable[[DriverRuntime], Plugin]


class NodeDriver:
    """The node driver.

    `demanded`: the vendors named by the operator; the others are served where their cards are
    found. `sampler` creates the source of readings for the cards of a driver; None: not supported.
    `usage` creates the reader of what containers use of shared cards.

    `wall` and `call` are for tests: the time that is written into objects, calls that block.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: NodeSettings,
        backends: Sequence[Backend],
        plugin: MakePlugin,
        *,
        demanded: Collection[str] = (),
        metrics: DriverMetrics | None = None,
        sampler: Callable[[DriverRuntime], CardSampler | None] = lambda _: None,
        usage: Callable[[DriverRuntime], UsageReader | None] = lambda _: None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        call: InThread = in_thread,
    ) -> None:
        self.metrics = metrics or DriverMetrics()
        self._cluster = cluster
        self._settings = settings
        self._plugin = plugin
        self._call = call
        self._news = asyncio.Event()
        self._fence = Fence(cluster, settings.fence_mode, now=lambda: asyncio.get_running_loop().time())
        self.metrics.begin()
        count = self.metrics.internal_error
        self._guard = LoopGuard("offers", count)
        self._events = NodeEvents(cluster, settings.instance or f"{settings.node}/{os.getpid()}", wall, count)
        guard = LoopGuard("watch node", count)
        this_node = f"metadata.name={settings.node}"
        self._nodes = Reflector(cluster, NODE, self, scope={"field_selector": this_node}, guard=guard)
        self._publisher = Publisher(
            cluster,
            owns=self._owns,
            field_selector=f"spec.nodeName={settings.node}",
            count=count,
            on_rewound=self._list_again,
        )
        self.runtimes: Mapping[str, DriverRuntime] = {
            backend.vendor: self._runtime(backend, wall, demanded=backend.vendor in demanded) for backend in backends
        }
        for runtime in self.runtimes.values():
            self._set_monitoring(runtime, sampler(runtime))
            runtime.usage_reader = usage(runtime)
        self.metrics.watch(
            settings.node, lambda: [runtime.watched() for runtime in self.runtimes.values()], settings.legacy_metrics
        )
        self._claims: HeldClaims | None = None
        if settings.native and settings.ranking is not None:
            drivers = [each.driver for each in self.runtimes.values()]
            self._claims = HeldClaims(cluster, settings.node, drivers, self._news.set, count)
        self._notices = Notices(self._events)

    def _set_monitoring(self, runtime: DriverRuntime, sampler: CardSampler | None) -> None:
        every = self._settings.monitor_interval
        if sampler is not None and every:
            hardware = runtime.hardware
            runtime.monitoring = Monitoring(
                runtime.vendor.name, sampler, lambda: hardware.cards, every, call=self._call
            )

    def _runtime(self, backend: Backend, wall: Callable[[], datetime], *, demanded: bool) -> DriverRuntime:
        """Create the runtime of one vendor's driver."""
        settings = self._settings
        hardware = Hardware(
            backend,
            FlapDamper(settings.recovery_time, settings.confirm_time),
            discover_every=settings.discover_every,
            health_every=settings.health_every,
            on_change=self._news.set,
            call=self._call,
            demanded=demanded,
        )
        publishing = plugin_of(backend.vendor).publishing
        runtime = DriverRuntime(publishing, hardware, settings, self.metrics, wall, demanded=demanded)
        runtime.changed = self._news.set
        return runtime

    def rediscover(self) -> None:
        for runtime in self.runtimes.values():
            runtime.hardware.rediscover()

    def _list_again(self) -> None:
        for watch in self._watches():
            watch.list_again()
        for runtime in self.runtimes.values():
            runtime.check_claims()

    def _watches(self) -> list[Reflector[Any]]:
        return [self._nodes, *([self._claims.reflector] if self._claims is not None else [])]

    def unready(self) -> list[str]:
        """Return the reasons why it is not ready, for /readyz; empty when it is."""
        watches = self._watches()
        if not all(watch.is_synced for watch in watches):
            return ["not all objects are listed yet"]
        found = [watch.problem for watch in watches if watch.problem]
        if self._node is None:
            found.append(f"there is no Node {self._settings.node}: is --node the name that kubelet registered?")
        for runtime in self.runtimes.values():
            found += runtime.problems()
        return found + [f"{key}: {problem}" for key, problem in self._publisher.problems.items()]

    async def run(self) -> None:
        """Run until cancelled. Raises UnsupportedKubernetes, ConfigError, ClusterError (the last only at the start)."""
        for runtime in self.runtimes.values():
            with self._guard.each(f"containers of {runtime.driver}"):
                await runtime.release_containers(self._call)
        await require_version(self._cluster)
        log.info("node %s: looking for cards of %s", self._settings.node, ", ".join(self.runtimes) or "no vendor")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nodes.run(), name="node")
                group.create_task(self._publisher.run(), name="publisher")
                group.create_task(self._events.run(), name="events")
                if self._claims is not None:
                    group.create_task(self._claims.reflector.run(), name="claims")
                for runtime in self.runtimes.values():
                    group.create_task(runtime.hardware.run(), name=f"hardware {runtime.driver}")
                    group.create_task(self._serve(runtime), name=f"plugin {runtime.driver}")
                    group.create_task(self._take_turn(runtime), name=f"turn {runtime.driver}")
                    if runtime.monitoring is not None:
                        group.create_task(_monitor(runtime.monitoring, runtime), name=f"monitoring {runtime.driver}")
                group.create_task(self._tell_nothing_found(), name="nothing found")
                await self._nodes.wait_synced()
                await self._publisher.reflector.wait_synced()
                await self._fence.refresh_until_it_succeeds()
                group.create_task(self._follow_fence(), name="fence")
                group.create_task(self._keep(), name="offers")
        finally:
            if self._settings.on_exit is OnExit.WITHDRAW:
                await self._withdraw()
            for runtime in self.runtimes.values():
                runtime.turn.give_back()

    # --- called by the reflector ------------------------------------------------------------------

    def changed(self, old: Node | None, new: Node | None) -> None:  # noqa: ARG002 (the Node is read again)
        """Wake the loop. Heartbeats are in Leases, so a Node rarely changes; an unchanged offer is not written."""
        self._news.set()

    def synced(self) -> None:
        self._news.set()

    @property
    def _node(self) -> Node | None:
        return self._nodes.store.get(self._settings.node)

    # --- one driver and kubelet -------------------------------------------------------------------

    async def _serve(self, runtime: DriverRuntime) -> None:
        """Serve kubelet once there is something to serve, even without the lock: it calls the newest driver."""
        await runtime.wanted.wait()
        await runtime.judged.wait()
        plugin = self._plugin(runtime)
        runtime.registered = plugin.registered
        tell = partial(self._notices.of_partition, lambda: self._node)
        watches = _started_watches(runtime, self._settings, self._call, self._guard, tell)
        try:
            await plugin.run()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)

    async def _take_turn(self, runtime: DriverRuntime) -> None:
        """Take the publisher lock; release it on cancellation, without waiting for kubelet's last call.

        Slices to be withdrawn are withdrawn before the other driver publishes.
        """
        await runtime.wanted.wait()
        await runtime.turn.take()
        self._news.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self._settings.on_exit is OnExit.KEEP:
                runtime.turn.give_back()

    async def _tell_nothing_found(self) -> None:
        """Log that no cards were found, once all vendors have been tried."""
        for runtime in self.runtimes.values():
            await runtime.hardware.tried.wait()
        runtimes = self.runtimes.values()
        if not any(runtime.demanded or runtime.hardware.cards for runtime in runtimes):
            why = "; ".join(f"{each.vendor.name}: {each.hardware.problem or 'no cards'}" for each in runtimes)
            log.warning(
                "there is nothing to publish on this node (%s). It is searched again every %g s, and at once on SIGHUP",
                why,
                self._settings.discover_every,
            )

    # --- deciding ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            node = self._node
            with self._guard.each(f"Node {self._settings.node}"):
                self._notices.of_node(self._settings.node, node)
            for runtime in self.runtimes.values():
                with self._guard.each(runtime.driver):
                    runtime.look(self._publisher.published(PoolKey(runtime.driver, self._settings.node)))
                    if runtime.wanted.is_set() and runtime.hardware.tried.is_set():
                        self._decide(runtime, node)
                        runtime.judged.set()
            if node is not None:
                with self._guard.each(f"Node {self._settings.node}"):
                    self._notices.of_cordon(node, self._cards())
            await asyncio.sleep(_BREATH)

    def _decide(self, runtime: DriverRuntime, node: Node | None) -> None:
        key = PoolKey(runtime.driver, self._settings.node)
        runtime.own_cards = ()
        if node is None:
            self._publisher.drop(key)
            runtime.count(None, ())
            return
        published = self._publisher.published(key)
        around = Surroundings(
            node,
            published,
            self._claims.held if self._claims is not None else (),
            self._fence.in_slices(runtime.driver, tainted=is_fenced(published)),
        )
        cordoned = runtime.cordoned(node)
        pool = empty_pool(runtime.driver, around.place)
        if runtime.hardware.found:
            pool = runtime.pool(around, cordoned)
            if not has_resources_of_plugins(node, runtime.driver):
                runtime.own_cards = tuple(card for card in runtime.hardware.cards if card.uuid not in cordoned)
            offered = {} if self._settings.beside_plugin else offered_by_plugin(node, runtime.driver)
            self._notices.of_plugin(node, runtime.driver, offered)
            if offered:
                pool = empty_pool(runtime.driver, around.place)
        elif published and not runtime.decided:
            # the previous driver knew more: slices are not withdrawn because a tool failed
            runtime.count(None, cordoned)
            return
        if self._claims is not None and not self._claims.reflector.is_synced:
            return  # the ranking would be that of an idle node
        if runtime.turn.is_ours:
            self._publisher.want(runtime.telling(pool, published))
            if not runtime.decided:
                runtime.decided = True
                self._publisher.recheck()
        runtime.count(pool, cordoned)

    def _cards(self) -> list[Card] | None:
        """Return all cards; None before all demanded hardware was read."""
        wanted = [runtime for runtime in self.runtimes.values() if runtime.wanted.is_set()]
        if not wanted or not all(runtime.hardware.found for runtime in wanted):
            return None
        return [card for runtime in wanted for card in runtime.hardware.cards]

    async def _follow_fence(self) -> None:
        """Poll the fence, unless the operator has fixed its mode: after an upgrade the cluster may support
        DeviceTaintRules, and then the taint leaves the slices. A watch on every node would cost more
        than the information is worth.
        """
        while self._fence.mode == "auto":
            awaited = self._fence.is_served and is_fenced(self._published())
            await asyncio.sleep(QUIET if awaited else _SELDOM)
            await self._fence.refresh_until_it_succeeds()
            self._news.set()

    def _published(self) -> list[ResourceSlice]:
        keys = [PoolKey(runtime.driver, self._settings.node) for runtime in self.runtimes.values()]
        return [item for key in keys for item in self._publisher.published(key)]

    def _owns(self, item: ResourceSlice) -> bool:
        """Return whether a slice may be deleted: it is of this node and of a driver whose state is known."""
        return item.spec.node_name == self._settings.node and any(
            runtime.decided and runtime.driver == item.spec.driver for runtime in self.runtimes.values()
        )

    # --- the end ----------------------------------------------------------------------------------

    async def _withdraw(self) -> None:
        """Withdraw the slices that this process may publish; another instance may be waiting with the same ones."""
        for key in list(self._publisher.wanted):
            self._publisher.drop(key)
        try:
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                await self._publisher.sync_once()
        except (NotPublished, TimeoutError) as error:
            log.warning("slices are left behind: %s", str(error) or f"no answer within {_WITHDRAW_SECONDS:g} s")


async def _monitor(monitoring: Monitoring[Card, Reading], runtime: DriverRuntime) -> None:
    """Monitor the cards once they are known."""
    await runtime.hardware.tried.wait()
    await monitoring.run()


def _started_watches(
    runtime: DriverRuntime, settings: NodeSettings, call: InThread, guard: LoopGuard, tell: Callable[[str, str], None]
) -> list[asyncio.Task[None]]:
    """Start the watches next to the server of kubelet's calls: what containers lack and use, and what their
    runtime left behind. `tell`: tell the operator of the node, in an event.
    """
    running = {"lacking": runtime.lacks.run(settings.discover_every, call, guard)}
    if runtime.usage_reader is not None:
        usage = UsageWatch(runtime.vendor.name, runtime.usage_reader, runtime.readable, runtime.claim_folders, call)
        runtime.usage = usage.monitoring if settings.monitor_interval else None
        running["usage"] = usage.run(settings.check_claims_every, guard)
    if runtime.runtime_partitions is not None:
        counters = {result: runtime.metrics.leftovers.labels(runtime.driver, result) for result in RESULTS}
        sources = LeftoverSources(
            cards=runtime.cards_to_clear,
            held=runtime.held_profiles,
            tell=tell,
            count=lambda result: counters[result].inc(),
        )
        leftovers = LeftoverWatch(runtime.driver, runtime.runtime_partitions, sources, call)
        running["leftovers"] = leftovers.run(settings.discover_every, guard)
    return [asyncio.create_task(work, name=f"{name} {runtime.driver}") for name, work in running.items()]
