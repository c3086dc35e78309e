"""The cards of one vendor on this machine: discovered, monitored, and never forgotten while the program runs.

Created by `service`, one per vendor. In: a back end, called in a thread. Out: `cards` and `faults`;
`on_change` after every difference. It must not know Kubernetes.

A failed reading changes nothing: cards are not withdrawn because a tool failed. A card that was
found and is missing now stays among the cards, with the fault `lost`, until the back end forgets
it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from msgspec.structs import replace

from hami_dra.api.hardware import Card
from hami_dra.discovery.backend import Backend, Health
from hami_dra.discovery.errors import DiscoveryError, ToolMissing
from hami_dra.driver.node.damping import Counted, FlapDamper
from hami_dra.driver.node.threads import InThread, in_thread
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
"""Longest wait for an event in seconds; a requested discovery waits as long."""
_CLOSE_SECONDS: Final = 2.0
_BREATH: Final = 0.2
"""Seconds between two checks of hardware that reports events one at a time."""


@dataclass(eq=False)
class Hardware:
    """Keep the cards current; `run()` until cancelled. In seconds: `discover_every`, `health_every`.

    `demanded`: such cards are expected; otherwise missing vendor tools are not reported.
    """

    backend: Backend
    damper: FlapDamper
    _: KW_ONLY
    discover_every: float
    health_every: float
    on_change: Callable[[], None]
    call: InThread = in_thread
    demanded: bool = True
    cards: tuple[Card, ...] = ()
    """All cards known to the back end, by index, without faults; lost ones are included."""
    faults: Mapping[str, tuple[Counted, ...]] = field(default_factory=dict)
    """Faults that count, by the uuid of each of `cards`."""
    found: bool = False
    """A discovery succeeded, with or without cards."""
    problem: str = ""
    """The reason why the hardware cannot be read now, or empty."""
    failures: int = 0
    """Failed readings since the start."""
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first discovery, successful or not."""
    _known: dict[str, Card] = field(default_factory=dict)
    _reported: frozenset[str] = field(default_factory=frozenset)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _outdated: bool = False
    """The last check found a change that only a discovery can take over."""
    _backoff: Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(first=min(5.0, self.discover_every), most=self.discover_every)

    @property
    def vendor(self) -> str:
        return self.backend.vendor

    def rediscover(self) -> None:
        """Discover the hardware soon, without waiting for the interval."""
        self._asked.set()

    async def run(self) -> None:
        try:
            due = discovered_at = self._now()
            while True:
                if self._asked.is_set() or self._now() >= due:
                    self._asked.clear()
                    next_in = await self._discover()
                    discovered_at = self._now()
                    due = discovered_at + next_in
                    self.tried.set()
                    continue
                if not self._known:
                    await wait_at_most(self._asked, due - self._now())
                    continue
                answered = await self._look()
                if self._outdated:  # at once, but not at every check
                    due = min(due, discovered_at + self.health_every)
                if answered and self.backend.tells_events:
                    await wait_at_most(self._asked, _BREATH)
                else:
                    await wait_at_most(self._asked, min(self.health_every, due - self._now()))
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close the back end. A call that was given up may still hold the hardware, and hang: then it stays open."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.call(self.backend.close)
        except (DiscoveryError, TimeoutError) as error:
            log.warning("%s: not closed: %s", self.vendor, str(error) or "it is still being read")

    async def _discover(self) -> float:
        """Discover the cards. Returns the seconds until the next discovery."""
        try:
            findings = await self.call(self.backend.discover)
        except DiscoveryError as error:
            self._failed(error)
            return self._backoff.next() if self.demanded or self.found else self.discover_every
        self._backoff.reset()
        self._outdated = False
        self._tell(findings.problems)
        there = {card.uuid: card for card in findings.cards}
        for uuid in self._known.keys() - there.keys():
            log.info("%s: card %s is no longer listed", self.vendor, uuid)
            self.damper.forget(uuid)
        for uuid, card in there.items():
            before = self._known.get(uuid)
            if before is None:
                log.info("%s: found card %d, %s (%s)", self.vendor, card.index, card.product, uuid)
            elif before.index != card.index:
                log.warning("%s: card %s has number %d now, no longer %d", self.vendor, uuid, card.index, before.index)
        self._known = {uuid: replace(card, faults=()) for uuid, card in there.items()}
        self.damper.look({uuid: card.faults for uuid, card in there.items()}, self._now())
        first, self.found = not self.found, True
        if first and not there and self.demanded:
            log.warning("%s: there are no cards on this machine", self.vendor)
        self._settle(first=first)
        return self.discover_every

    async def _look(self) -> bool:
        """Check the health of the cards. Returns whether the hardware answered."""
        patience = min(self.health_every, _PATIENCE) if self.backend.tells_events else 0.0
        try:
            health: Health = await self.call(lambda: self.backend.health(patience))
        except DiscoveryError as error:
            self._failed(error)
            return False
        self._tell(health.problems)
        self.damper.look({uuid: found for uuid, found in health.faults.items() if uuid in self._known}, self._now())
        self._outdated = health.outdated
        self._settle()
        return True

    def _settle(self, *, first: bool = False) -> None:
        """Report a change of state to the owner; the first time even that there is nothing."""
        if self.problem:
            log.info("%s: the hardware can be read again", self.vendor)
        cards = tuple(sorted(self._known.values(), key=lambda card: (card.index, card.uuid)))
        faults = {card.uuid: self.damper.counted(card.uuid) for card in cards}
        self._log(cards, faults)
        news = first or (self.cards, self.faults, self.problem) != (cards, faults, "")
        self.cards, self.faults, self.problem = cards, faults, ""
        if news:
            self.on_change()

    def _failed(self, error: DiscoveryError) -> None:
        self.failures += 1
        self.damper.blind()
        if str(error) != self.problem:
            expected = isinstance(error, ToolMissing) and not (self.demanded or self.found)
            log.log(logging.DEBUG if expected else logging.WARNING, "%s: %s", self.vendor, error)
            self.problem = str(error)
            self.on_change()

    def _tell(self, problems: tuple[str, ...]) -> None:
        """Log each problem once, until it is gone and returns."""
        for problem in problems:
            if problem not in self._reported:
                log.warning("%s: %s", self.vendor, problem)
        self._reported = frozenset(problems)

    def _log(self, cards: tuple[Card, ...], faults: Mapping[str, tuple[Counted, ...]]) -> None:
        for card in cards:
            before = {each.fault.code for each in self.faults.get(card.uuid, ())}
            now = {each.fault.code: each.fault.message for each in faults[card.uuid]}
            for code in now.keys() - before:
                log.warning("%s: card %d (%s): %s: %s", self.vendor, card.index, card.uuid, code, now[code])
            for code in before - now.keys():
                log.info("%s: card %d (%s): %s is over", self.vendor, card.index, card.uuid, code)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
