"""One driver on this node: its hardware, the devices it offers now, and their health for kubelet.
`service` has one per vendor.

In: the node, the fence and claims, from `service`. Out: a pool, the same devices for preparation,
health, metrics. It neither reads nor writes the cluster.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
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
from hami_dra.driver.kubelet.protocol import DeviceHealth, Verdict
from hami_dra.driver.node.cordon import cordon_of
from hami_dra.driver.node.damping import Counted
from hami_dra.driver.node.hardware import Hardware
from hami_dra.driver.node.hardware_metrics import MonitoredVendor
from hami_dra.driver.node.lacking import LackWatch
from hami_dra.driver.node.leftovers import HeldProfiles
from hami_dra.driver.node.metrics import DriverMetrics
from hami_dra.driver.node.monitoring import Monitoring
from hami_dra.driver.node.pool_content import (
    NodeReference,
    PoolContent,
    PoolOptions,
    evicting,
    evicting_now,
    pool_content,
    reordered,
    taint_keys,
    uuid_of,
)
from hami_dra.driver.node.publisher_lock import PublisherLock
from hami_dra.driver.node.settings import NodeSettings
from hami_dra.driver.node.tenants import granted_containers, held_partitions, held_profiles, loads, tenants
from hami_dra.driver.node.threads import InThread
from hami_dra.driver.prepare import Inventory, Record, inventory_of
from hami_dra.driver.slices import Pool, fenced, pool_of
from hami_dra.driver.taints import TaintKey, TaintTimes, timed, times_of
from hami_dra.monitor.readings import Reading
from hami_dra.monitor.simulated import Load
from hami_dra.monitor.usage import ContainerUsage, GrantedContainer, UsageReader
from hami_dra.vendors.faults import FaultKind, kind_of
from hami_dra.vendors.publishing import PublishingVendor
from hami_dra.vendors.registry import containers


class DeviceHealths:
    """The health of devices as kubelet writes it into the status of their pods: a partition is as
    healthy as its card, and a cordoned card is healthy. Implements `HealthSource`.
    """

    def __init__(self) -> None:
        self._known: dict[str, DeviceHealth] = {}
        self._version = 0
        self._looked_at = -1
        self._news = asyncio.Event()

    def update(self, pool: Pool, faults: Mapping[str, Sequence[Counted]], problem: str) -> None:
        """Update the verdicts. `pool`: all devices; `problem`: why the hardware cannot be read now, or empty."""
        before, self._known = self._known, {}
        for device in pool.devices:
            name = str(device["name"])
            verdict, message = _judged(faults.get(uuid_of(device), ()), problem)
            self._known[name] = DeviceHealth(pool.name, name, verdict, message)
        if self._known != before:
            self._version += 1
            self._news.set()
            self._news = asyncio.Event()

    def current(self) -> Sequence[DeviceHealth]:
        self._looked_at = self._version
        return tuple(self._known.values())

    async def changed(self) -> None:
        if self._looked_at == self._version:
            await self._news.wait()


def _judged(faults: Sequence[Counted], problem: str) -> tuple[Verdict, str]:
    if faults:
        return Verdict.UNHEALTHY, "; ".join(f"{each.fault.code}: {each.fault.message}" for each in faults)
    if problem:
        return Verdict.UNKNOWN, problem
    return Verdict.HEALTHY, ""


log = logging.getLogger(__name__)


async def _unknown() -> None:
    return None


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


@dataclass(eq=False)
class DriverRuntime:
    """The runtime of one driver.

    `demanded`: the operator named the vendor, so that it is served even where no card is found.
    """

    vendor: PublishingVendor
    hardware: Hardware
    settings: NodeSettings
    metrics: DriverMetrics
    wall: Callable[[], datetime]
    _: KW_ONLY
    demanded: bool
    own_cards: tuple[Card, ...] = ()
    """Cards that this driver alone hands out: not cordoned, and offered by no device plugin."""
    runtime_partitions: RuntimePartitions | None = None
    """Set by the creator of the plugin where partitions left behind are to be removed."""
    health: DeviceHealths = field(default_factory=DeviceHealths)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there is something to serve: cards, or a vendor demanded by the operator."""
    judged: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the first decision on the offer was made, even if the offer is empty."""
    decided: bool = False
    """The driver may write its slices; before that, the true state is unknown."""
    offer: PoolContent | None = None
    """All its devices, published or not."""
    inventory: Inventory | None = None
    """The same devices for preparation; replaced, never changed: any thread may read it."""
    prepared: Callable[[], Mapping[str, Record]] = dict
    """Prepared claims by uid; set by the creator of the plugin."""
    held_claims: Callable[[], str | None] = lambda: None
    """Devices held for deleted claims, as the annotation says it; None: not known. Set likewise."""
    check_claims: Callable[[], None] = lambda: None  # set likewise
    lacking: Callable[[], Sequence[Lack]] = tuple
    """What containers would lack now; reads files. Set by the creator of the plugin."""
    changed: Callable[[], None] = lambda: None
    """Called when there may be something else to publish; set by `service`."""
    inventory_changed: Callable[[], None] = lambda: None
    """Called when `inventory` was replaced; set by the creator of the plugin."""
    monitoring: Monitoring[Card, Reading] | None = None
    """Readings of its cards; set by `service` where monitoring is supported and enabled."""
    usage_reader: UsageReader | None = None
    """Reads what containers use of shared cards; set by `service` where the vendor has one."""
    latest_records: Callable[[], Awaitable[Mapping[str, Record] | None]] = _unknown
    """`prepared`, read again; None: not known. Set by the creator of the plugin."""
    usage: Monitoring[GrantedContainer, ContainerUsage] | None = None
    """What containers use; set by `service` once kubelet is served."""
    registered: asyncio.Event | None = None
    """The `registered` event of the plugin that serves kubelet, once there is one."""
    _times: TaintTimes = field(default_factory=dict)
    _inherited: set[tuple[str, TaintKey]] | None = None
    """Taints of an earlier driver that are not over yet; None before the first decision."""
    driver: str = field(init=False)
    turn: PublisherLock = field(init=False)
    lacks: LackWatch = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.vendor.driver
        self.turn = PublisherLock(self.settings.plugins_dir / self.driver / "publisher.lock")
        self.lacks = LackWatch(self.driver, lambda: self.lacking(), lambda: self.changed())  # noqa: PLW0108 (both are set later)
        # these change without a decision
        self.metrics.registered.labels(self.driver).set_function(lambda: float(self._is_registered()))
        self.metrics.readings_failed.labels(self.driver).set_function(lambda: float(self.hardware.failures))
        if self.demanded:
            self.wanted.set()

    def look(self, published: Collection[ResourceSlice]) -> None:
        """Check whether there is something to serve now. Slices of cards known to be gone have to be emptied."""
        if self.hardware.cards or (self.hardware.found and published):
            self.wanted.set()

    def pool(self, around: Surroundings, cordoned: Collection[str]) -> Pool:
        """Return the pool to offer now. The devices, before ranking and fencing, are stored in `offer`."""
        settings = self.settings
        published = (device for item in around.published for device in item.spec.devices)
        known = {**times_of(published), **self._times}
        # after the first decision the evicting taints in force can only become fewer: from then on this
        # driver evicts only for faults that it has seen itself
        published_taints = evicting_now(around.published) if self._inherited is None else self._inherited
        options = PoolOptions(
            vendors=settings.options, effects=settings.effects, cordoned=cordoned, published_taints=published_taints
        )
        before = self.offer
        self.offer = pool_content(self.vendor, around.place, self.hardware.cards, self.hardware.faults, options)
        self._inherited = published_taints & evicting(self.offer.pool)
        if self.offer != before:
            pool = self.offer.pool
            sites = containers(self.vendor.name).sites(self.hardware.cards)
            self.inventory = inventory_of(self.driver, pool.name, pool.devices, sites, pool.shared_counters)
            self.inventory_changed()
        for problem in self.offer.problems:
            if before is None or problem not in before.problems:
                log.warning("%s: %s", self.driver, problem)
        # the times at which taints were first published survive deleted slices and restarts of the driver
        now = timestamp(self.wall())
        self._times = {key: known.get(key, now) for key in taint_keys(self.offer.pool)}
        pool = self.offer.pool.with_devices([timed(device, self._times) for device in self.offer.pool.devices])
        if settings.native and settings.ranking is not None:
            pool = reordered(pool, settings.ranking(pool, around.node, around.claims))
        self.health.update(self.offer.pool, self.hardware.faults, self.hardware.problem)
        return fenced(pool, fence=around.fence)

    def telling(self, pool: Pool, published: Collection[ResourceSlice]) -> Pool:
        """Return the pool with its annotations: devices held for deleted claims, and what containers would lack.

        Before these are known, the published values stay.
        """
        lacks = self.lacks.text
        if lacks == "" and not any(names.NODE_LACKS in item.metadata.annotations for item in published):
            lacks = None  # the usual case: no slice is rewritten for it
        said = {names.HELD_CLAIMS: self.held_claims(), names.NODE_LACKS: lacks}
        known = {name: text for name, text in said.items() if text is not None}
        return replace(pool, annotations=known) if known else pool

    def cordoned(self, node: Node) -> frozenset[str]:
        return cordon_of(node, self.hardware.cards).uuids

    def count(self, published: Pool | None, cordoned: Collection[str]) -> None:
        """Update the metrics. `published`: the slices as they should be."""
        hardware, metrics, driver = self.hardware, self.metrics, self.driver
        metrics.cards.labels(driver).set(len(hardware.cards))
        metrics.cordoned.labels(driver).set(len(cordoned))
        metrics.devices.labels(driver).set(len(published.devices) if published else 0)
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
        """Return the containers whose use this process reads: of two drivers side by side, the one that publishes."""
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
        faults = self.hardware.faults
        return [
            card
            for card in self.own_cards
            if self.turn.is_ours
            and not any(kind_of(each.fault.code) is FaultKind.LOST for each in faults.get(card.uuid, ()))
        ]

    async def release_containers(self, call: InThread) -> None:
        """Let containers continue that a killed driver made wait; needs nothing of the API server."""
        for problem in await call(self.usage_reader.release) if self.usage_reader is not None else ():
            log.warning("%s: %s", self.driver, problem)

    def loads(self) -> Mapping[str, Load]:
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


def empty_pool(driver: str, place: NodeReference) -> Pool:
    """Return the pool of a driver that runs and has nothing to offer."""
    return replace(pool_of(driver, place.name, []), node_uid=place.uid)
