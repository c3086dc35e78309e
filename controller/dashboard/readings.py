"""Readings of cards from the node drivers' /metrics: parsed, kept per node, summed per driver.

`Readings` is used by `cardpages`; `app` runs its loop. The text comes from a `Meters`
(`serving`; tests have their own). Drivers are queried only while a page with readings is open,
and at most every 30 seconds. Whatever a driver answers, a page is shown: unreadable values are no
reading. A driver reports the cards of its own node only: values for other UUIDs are ignored.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from controller.inventory import Inventory
from controller.views.overview import ContainerUse, container_uses, samples_of
from hami_dra.api import names

log = logging.getLogger(__name__)

INTERVAL: Final = 30.0
"""Least number of seconds between two rounds through all drivers."""
AT_ONCE: Final = 16
LONGEST: Final = 2.0
"""Seconds within which one driver must answer."""
MOST_BYTES: Final = 4 << 20
"""Limit for one answer."""
OLD: Final = 120.0
"""Seconds after which a reading is discarded."""
_MOST_CARDS: Final = 256
"""Limit for one answer; no node has this many cards."""
_LARGEST: Final = 1 << 62


class CardReading(Struct, frozen=True):
    """One card. None: not reported."""

    memory_used: int | None = None
    """Bytes, by all programs on the card."""
    memory_total: int | None = None
    utilization: float | None = None
    """Percent of time in which the card computed, 0 to 100."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    simulated: bool = False
    """The machine is simulated, so the values are not measured."""


class CardUse(Struct, frozen=True):
    """Sum over the cards of one driver; cards without a reading do not count."""

    memory_used: int = 0
    memory_total: int = 0
    """Total memory of the cards whose memory use is known."""
    busy: float = 0.0
    """Percent, summed over `measured` cards."""
    measured: int = 0
    simulated: bool = False
    """At least one of the readings is simulated."""


class Target(Struct, frozen=True):
    node: str
    url: str


class _Answer(Struct, frozen=True):
    """What the drivers of one node have answered."""

    cards: Mapping[str, CardReading]
    """By uuid."""
    containers: Mapping[str, tuple[ContainerUse, ...]]
    """By the card's uuid."""


class Meters(Protocol):
    def targets(self) -> Sequence[Target]: ...

    async def ask(self, target: Target) -> str:
        """Return the driver's metrics as Prometheus text. Any exception means that there is no reading."""


@dataclass(eq=False)
class Readings:
    """The latest readings. `meters` None: no driver is queried. `on_change` is called after each update."""

    meters: Meters | None
    on_change: Callable[[], None] = lambda: None
    _: KW_ONLY
    interval: float = INTERVAL
    longest: float = LONGEST
    now: Callable[[], float] = time.monotonic
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _taken: float = -math.inf
    _nodes: Mapping[str, _Answer] = field(default_factory=dict)
    _uses: tuple[object, dict[str, CardUse]] | None = None

    @property
    def on(self) -> bool:
        return self.meters is not None

    def known(self, nodes: Iterable[str]) -> int:
        """Return for how many of these nodes there is a reading."""
        return sum(node in self._nodes for node in nodes)

    def wanted(self) -> None:
        self._wanted.set()
        if self._nodes and self.now() - self._taken > OLD:
            self._nodes = {}
            self.on_change()

    def of(self, node: str, uuid: str) -> CardReading | None:
        answer = self._nodes.get(node)
        return answer.cards.get(uuid) if answer is not None else None

    def containers(self, node: str, uuid: str) -> tuple[ContainerUse, ...]:
        """Return what containers use of a shared card; empty where it is not known."""
        answer = self._nodes.get(node)
        return answer.containers.get(uuid, ()) if answer is not None else ()

    def uses(self, inventory: Inventory) -> Mapping[str, CardUse]:
        """Return the use by driver, read once for each round and each version of the published devices."""
        key = (self._taken, len(self._nodes), inventory.devices.structure.version)
        if self._uses is None or self._uses[0] != key:
            self._uses = (key, _uses(inventory, self._nodes))
        return self._uses[1]

    async def run(self) -> None:
        """Query drivers until cancelled."""
        if self.meters is None:
            return
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._round(self.meters)
            except Exception:  # a page without readings is better than no page
                log.exception("the drivers could not be queried for readings")
            self.on_change()
            await asyncio.sleep(self.interval)

    async def _round(self, meters: Meters) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        found: dict[str, _Answer] = {}

        async def ask(target: Target) -> None:
            async with gate:
                try:
                    async with asyncio.timeout(self.longest):
                        text = await meters.ask(target)
                except Exception as error:  # noqa: BLE001 (any failure means no reading)
                    log.debug("%s: no reading from %s: %r", target.node, target.url, error)
                    return
                cards, containers = await asyncio.to_thread(lambda: (readings_of(text), container_uses(text)))
            if cards:
                before = found.get(target.node, _Answer({}, {}))
                found[target.node] = _Answer({**before.cards, **cards}, {**before.containers, **containers})

        await asyncio.gather(*(ask(target) for target in meters.targets()))
        self._nodes, self._taken = found, self.now()


def readings_of(text: str) -> dict[str, CardReading]:
    """Return readings by UUID from Prometheus text. Never raises. Impossible values are none."""
    found: dict[str, CardReading] = {}
    for sample in samples_of(text, _LIMITS):
        uuid = sample.labels.get("device_uuid", "")
        if not uuid or (uuid not in found and len(found) >= _MOST_CARDS):
            continue
        field = _FIELDS[sample.name]
        value = int(sample.value) if field.startswith("memory") else sample.value
        before = found.get(uuid, CardReading())
        changed = replace(before, **{field: value})
        found[uuid] = replace(changed, simulated=before.simulated or sample.labels.get("source") == names.SIMULATED)
    return found


_FIELDS: Final = {
    names.METRIC_MEMORY_USED: "memory_used",
    names.METRIC_MEMORY_TOTAL: "memory_total",
    names.METRIC_UTILIZATION: "utilization",
    names.METRIC_TEMPERATURE: "temperature",
    names.METRIC_POWER: "power",
}
_LIMITS: Final = {
    names.METRIC_MEMORY_USED: (0.0, float(_LARGEST)),
    names.METRIC_MEMORY_TOTAL: (0.0, float(_LARGEST)),
    names.METRIC_UTILIZATION: (0.0, 100.0),
    names.METRIC_TEMPERATURE: (-100.0, 1000.0),
    names.METRIC_POWER: (0.0, 100_000.0),
}


def _uses(inventory: Inventory, nodes: Mapping[str, _Answer]) -> dict[str, CardUse]:
    found: dict[str, CardUse] = {}
    for node, answer in nodes.items():
        for row in inventory.rows_on(node):
            device = inventory.devices.device(row)
            reading = answer.cards.get(device.string_attribute(device.profile.uuid))
            if reading is None or device.is_part:
                continue
            use, published = found.get(device.id.driver, CardUse()), int(inventory.devices.memory_total[row])
            found[device.id.driver] = _with(use, reading, published)
    return found


def _with(use: CardUse, reading: CardReading, published: int) -> CardUse:
    known = reading.memory_used is not None
    busy = reading.utilization
    return CardUse(
        memory_used=use.memory_used + (reading.memory_used or 0),
        memory_total=use.memory_total + ((reading.memory_total or published) if known else 0),
        busy=use.busy + (busy or 0.0),
        measured=use.measured + (busy is not None),
        simulated=use.simulated or reading.simulated,
    )
