"""One driver on this node: its hardware, the devices it offers now, and their health for kubelet.
`service` has one per vendor.

In: the node, the fence and claims, from `service`. Out: a pool, the same devices for preparation,
health, metrics. It neither reads nor writes the cluster.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.containers import RuntimePartitions
from hami_dra.api.core import Node
from hami_dra.api.hardware import Card
from hami_dra.api.nodelacks import Lack
from hami_dra.api.resource import ResourceClaim, ResourceSlice
from hami_dra.api.times import timestamp
from hami_dra.driver.node.cordon import cordon_of
from hami_dra.driver.node.damping import Counted
from hami_dra.driver.node.hardware import Hardware
from hami_dra.driver.node.hardware_metrics import MonitoredVendor
from hami_dra.driver.node.health import DeviceHealths
from hami_dra.driver.node.lacking import LackWatch
from hami_dra.driver.node.leftovers import HeldProfiles
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.monitoring import Monitoring
from hami_dra.driver.node.pool_content import (
    NodeReference,
    PoolContent,
    PoolOptions,
    TaintKey,
    TaintTimes,
    devices_of,
    evicting,
    evicting_now,
    pool_content,
    reordered,
    taint_keys,
    timed,
    times_of,
)
from hami_dra.driver.node.publisher_lock import PublisherLock
from hami_dra.driver.node.settings import NodeSettings
from hami_dra.driver.node.tenants import granted_containers, held_partitions, held_profiles, loads, tenants
from hami_dra.driver.node.threads import InThread
from hami_dra.driver.prepare import Inventory, Record, inventory_of
from hami_dra.driver.slices import Pool, fenced, pool_of
from hami_dra.monitor.readings import Reading
from hami_dra.monitor.simulated import Load
from hami_dra.monitor.usage import ContainerUsage, GrantedContainer, UsageReader
from hami_dra.vendors.faults import FaultKind, kind_of
from hami_dra.vendors.publishing import PublishingVendor
from hami_dra.vendors.registry import containers

log = logging.getLogger(__name__)


class Surroundings(Struct, frozen=True):
    """The state of the cluster, as `service` knows it."""

    node: Node
    published: Collection[ResourceSlice]
    """Slices of this driver on this node, as last seen."""
    claims: Collection[ResourceClaim]
    """Claims that hold devices of the node; only in native mode."""
    fence: bool

    @property
    def place(self) -> NodeReference:
        return NodeReference(self.node.metadata.name, self.node.metadata.uid)


class DriverRuntime:
    """The runtime of one driver.

    `demanded`: the operator named the vendor, so that it is served even where no card is found.
    """

    own_cards: tuple[Card, ...] = ()
    """Cards that this driver alone hands out: not cordoned, and offered by no device plugin."""
    runtime_partitions: RuntimePartitions | None = None
    """Set by the creator of the plugin where partitions left behind are to be removed."""

    def __init__(
        self,
        vendor: PublishingVendor,
        hardware: Hardware,
        settings: NodeSettings,
        metrics: DriverMetrics,
        wall: Callable[[], datetime],
        *,
        demanded: bool,
    ) -> None:
        self.vendor = vendor
        self.driver = vendor.driver
        self.hardware = hardware
        self.demanded = demanded
        self.health = DeviceHealths()
        self.turn = PublisherLock(settings.plugins_dir / vendor.driver / "publisher.lock")
        self.wanted = asyncio.Event()
        """Set once there is something to serve: cards, or a vendor demanded by the operator."""
        self.judged = asyncio.Event()
        """Set once the first decision on the offer was made, even if the offer is empty."""
        self.decided = False
        """The driver may write its slices; before that, the true state is unknown."""
        self.offer: PoolContent | None = None
        """All its devices, published or not."""
        self.inventory: Inventory | None = None
        """The same devices for preparation; replaced, never changed: any thread may read it."""
        self.prepared: Callable[[], Mapping[str, Record]] = dict
        """Prepared claims by uid; set by the creator of the plugin."""
        self.held_claims: Callable[[], str | None] = lambda: None
        """Devices held for deleted claims, as the annotation says it; None: not known. Set likewise."""
        self.check_claims: Callable[[], None] = lambda: None  # set likewise
        self.lacking: Callable[[], Sequence[Lack]] = tuple
        """What containers would lack now; reads files. Set by the creator of the plugin."""
        self.lacks = LackWatch(vendor.driver, self._ask_lacking, self._lacks_changed)
        self.changed: Callable[[], None] = lambda: None
        """Called when there may be something else to publish; set by `service`."""
        self.inventory_changed: Callable[[], None] = lambda: None
        """Called when `inventory` was replaced; set by the creator of the plugin."""
        self.monitoring: Monitoring[Card, Reading] | None = None
        """Readings of its cards; set by `service` where monitoring is supported and enabled."""
        self.usage_reader: UsageReader | None = None
        """Reads what containers use of shared cards; set by `service` where the vendor has one."""
        self.latest_records: Callable[[], Awaitable[Mapping[str, Record] | None]] = _unknown
        """`prepared`, read again; None: not known. Set by the creator of the plugin."""
        self.usage: Monitoring[GrantedContainer, ContainerUsage] | None = None
        """What containers use; set by `service` once kubelet is served."""
        self.registered: asyncio.Event | None = None
        """The `registered` event of the plugin that serves kubelet, once there is one."""
        self._settings = settings
        self.metrics = metrics
        self._wall = wall
        self._times: TaintTimes = {}
        self._inherited: set[tuple[str, TaintKey]] | None = None
        """Taints of an earlier driver that are not over yet; None before the first decision."""
        # these change without a decision
        metrics.registered.labels(self.driver).set_function(lambda: float(self._is_registered()))
        metrics.readings_failed.labels(self.driver).set_function(lambda: float(hardware.failures))
        if demanded:
            self.wanted.set()

    def look(self, published: Collection[ResourceSlice]) -> None:
        """Check whether there is something to serve, after a change. Slices of cards known to be
        gone have to be emptied.
        """
        if self.hardware.cards or (self.hardware.found and published):
            self.wanted.set()

    def pool(self, around: Surroundings, cordoned: Collection[str]) -> Pool:
        """Return the pool to offer now. The devices, before ranking and fencing, are stored in `offer`."""
        settings = self._settings
        known = {**times_of(around.published), **self._times}
        published_taints = self._published_taints(around.published)
        options = PoolOptions(
            vendors=settings.options, effects=settings.effects, cordoned=cordoned, published_taints=published_taints
        )
        before = self.offer
        self.offer = pool_content(self.vendor, around.place, self.hardware.cards, self.hardware.faults, options)
        self._inherited = published_taints & evicting(self.offer.pool)
        if self.offer != before:
            pool = self.offer.pool
            sites = containers(self.vendor.name).sites(self.hardware.cards)
            counters = [counter_set for content in pool.slices for counter_set in content.shared_counters]
            self.inventory = inventory_of(self.driver, pool.name, devices_of(pool), sites, counters)
            self.inventory_changed()
        for problem in self.offer.problems:
            if before is None or problem not in before.problems:
                log.warning("%s: %s", self.driver, problem)
        pool = self._timed(self.offer.pool, known)
        if settings.native and settings.ranking is not None:
            pool = reordered(pool, settings.ranking(pool, around.node, around.claims))
        self.health.update(self.offer.pool, self.hardware.faults, self.hardware.problem)
        return fenced(pool, fence=around.fence)

    def _ask_lacking(self) -> Sequence[Lack]:
        return self.lacking()

    def _lacks_changed(self) -> None:
        self.changed()

    def telling(self, pool: Pool, published: Collection[ResourceSlice]) -> Pool:
        """Return the pool with its annotations: devices held for deleted claims, and what
        containers would lack.

        Before these are known, the published values stay.
        """
        lacks = self.lacks.text
        if lacks == "" and not any(names.NODE_LACKS in item.metadata.annotations for item in published):
            lacks = None  # the usual case: no slice is rewritten for it
        said = {names.HELD_CLAIMS: self.held_claims(), names.NODE_LACKS: lacks}
        known = {name: text for name, text in said.items() if text is not None}
        return replace(pool, annotations=known) if known else pool

    def cordoned(self, node: Node) -> frozenset[str]:
        """Return the uuids of its cordoned cards."""
        return cordon_of(node, self.hardware.cards).uuids

    def count(self, published: Pool | None, cordoned: Collection[str]) -> None:
        """Update the metrics. `published`: the slices as they should be."""
        hardware, metrics, driver = self.hardware, self.metrics, self.driver
        metrics.cards.labels(driver).set(len(hardware.cards))
        metrics.cordoned.labels(driver).set(len(cordoned))
        metrics.devices.labels(driver).set(len(devices_of(published)) if published else 0)
        kinds = [{kind_of(each.fault.code) for each in faults} for faults in hardware.faults.values()]
        for kind in FaultKind:
            metrics.faulty.labels(driver, kind.value).set(sum(kind in found for found in kinds))

    def watched(self) -> MonitoredVendor:
        """Return the cards and their tenants for the metrics; called at each scrape."""
        faulty = frozenset(uuid for uuid, faults in self.hardware.faults.items() if faults)
        held = tenants(self.prepared(), self.inventory)
        cards, usage = self.hardware.cards, self.usage
        parts = held_partitions(self.prepared(), self.inventory)
        return MonitoredVendor(self.driver, self.vendor.name, cards, faulty, held, self.monitoring, usage, parts)

    def readable(self) -> Sequence[GrantedContainer]:
        """Return the containers whose use of the cards this process reads: while two drivers run
        side by side, the one that publishes.
        """
        return granted_containers(self.prepared(), self.inventory) if self.turn.is_ours else ()

    async def claim_folders(self) -> Collection[str] | None:
        """Return the paths of the folders of prepared claims; None while these are not known."""
        records = await self.latest_records()
        return None if records is None else {folder.path for each in records.values() for folder in each.folders}

    async def held_profiles(self) -> HeldProfiles | None:
        """Return how many containers may have a partition of the runtime's; None while not known."""
        records = await self.latest_records()
        return None if records is None else held_profiles(records)

    def cards_to_clear(self) -> Sequence[Card]:
        """Return the cards on which partitions left behind may be removed, by this process."""
        lost = {uuid for uuid, faults in self.hardware.faults.items() if any(_is_lost(each) for each in faults)}
        return [card for card in self.own_cards if card.uuid not in lost] if self.turn.is_ours else []

    async def release_containers(self, call: InThread) -> None:
        """Let containers continue that a killed driver made wait; needs nothing of the API server."""
        for problem in await call(self.usage_reader.release) if self.usage_reader is not None else ():
            log.warning("%s: %s", self.driver, problem)

    def loads(self) -> Mapping[str, Load]:
        """Return the granted shares of each card, by uuid."""
        return loads(self.prepared(), self.inventory)

    def problems(self) -> list[str]:
        """Return the reasons why it does not serve as it should, in sentences."""
        if not self.wanted.is_set():
            return []
        found = [f"{self.driver}: {self.hardware.problem}"] if self.hardware.problem else []
        if not self.hardware.found and not found:
            found.append(f"{self.driver}: its hardware has not been read yet")
        if not self._is_registered():
            found.append(f"{self.driver}: kubelet has not registered it yet")
        return found

    def _is_registered(self) -> bool:
        return self.registered is not None and self.registered.is_set()

    def _published_taints(self, published: Collection[ResourceSlice]) -> set[tuple[str, TaintKey]]:
        """Return the evicting taints in force. After the first decision they can only become fewer:
        from then on this driver evicts only for faults that it has seen itself.
        """
        return evicting_now(published) if self._inherited is None else self._inherited

    def _timed(self, pool: Pool, known: TaintTimes) -> Pool:
        """Return the pool with the times at which its taints were first published; they survive
        deleted slices and restarts of the driver.
        """
        now = timestamp(self._wall())
        self._times = {key: known.get(key, now) for key in taint_keys(pool)}
        return timed(pool, self._times)


def _is_lost(fault: Counted) -> bool:
    return kind_of(fault.fault.code) is FaultKind.LOST


async def _unknown() -> None:
    return None


def empty_pool(driver: str, place: NodeReference) -> Pool:
    """Return the pool of a driver that runs and has nothing to offer."""
    return replace(pool_of(driver, place.name, []), node_uid=place.uid)
