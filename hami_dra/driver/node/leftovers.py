"""Remove the partitions that a container runtime left behind: those that no container uses and that no
prepared claim can have.

Run by `service` for each driver whose vendor has `RuntimePartitions`, while this process is the one that
publishes. A partition does not say for which container it was made, so claims are counted: a container of
a claim has at most one partition of the claim's profile on its card. Only where exactly as many of a
profile are in use as such containers exist, the idle ones belong to none.

    claims' containers   in use   idle   left behind
    0                    0        2      2
    2                    2        1      1
    2                    1        1      none: it may be that of the second container, which runs without using it
    1                    2        1      none: someone else makes partitions on this card

One that was left behind must have been so for `GRACE` seconds and at two looks, and still be so after
the card was listed once more, just before it is removed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct, field

from hami_dra.api.containers import RuntimePartition, RuntimePartitions
from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.driver.node.threads import InThread
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.guard import LoopGuard

log = logging.getLogger(__name__)

GRACE: Final = 120.0
"""Seconds. A container is created within seconds after its partition."""
REMOVED: Final = "LeftoverPartitionRemoved"
NOT_REMOVED: Final = "LeftoverPartitionNotRemoved"
_DONE, _FAILED = RESULTS = "removed", "failed"

HeldProfiles = Mapping[tuple[str, str], float]
"""(uuid of a card, profile) → containers that may have such a partition; inf: not known."""
Key = tuple[str, int, str]
"""Uuid of the card, number of the partition, its profile."""


class LeftoverSources(Struct, frozen=True, kw_only=True):
    """What the watch reads, and whom it tells."""

    cards: Callable[[], Sequence[Card]]
    """Cards whose partitions only this driver hands out."""
    held: Callable[[], Awaitable[HeldProfiles | None]]
    """None while the prepared claims are not known."""
    tell: Callable[[str, str], None]
    """Tell the operator of the node: a reason and a sentence."""
    count: Callable[[str], None]
    """Count a result: removed, failed."""


class _Leftover(Struct):
    since: float
    due: float
    backoff: Backoff
    looks: int = field(default=0)


class LeftoverWatch:
    def __init__(self, driver: str, partitions: RuntimePartitions, sources: LeftoverSources, call: InThread) -> None:
        self._driver = driver
        self._partitions = partitions
        self._sources = sources
        self._call = call
        self._known: dict[Key, _Leftover] = {}
        self._problems: frozenset[str] = frozenset()

    async def run(self, every: float, guard: LoopGuard) -> None:
        """Look now and every `every` seconds, and where something is due earlier, until cancelled."""
        while True:
            with guard.each(f"partitions left behind on cards of {self._driver}"):
                await self._look(every)
            now = _now()
            waiting = [leftover.due - now for leftover in self._known.values()]
            await asyncio.sleep(max(min([every, *waiting]), min(1.0, every)))

    async def _look(self, every: float) -> None:
        problems: dict[str, list[str]] = {}
        found: dict[Key, Card] = {}
        for card in self._sources.cards():
            try:
                found |= {(card.uuid, each.number, each.profile): card for each in await self._left_behind(card)}
            except DiscoveryError as error:
                problems.setdefault(str(error), []).append(str(card.index))
        self._report(problems)
        now = _now()
        fresh = {
            key: self._known.get(key, _Leftover(now, now + GRACE, Backoff(first=GRACE, most=max(every, GRACE))))
            for key in found
        }
        self._known = fresh
        for key, leftover in list(fresh.items()):
            leftover.looks += 1
            if leftover.looks > 1 and now >= leftover.due:
                await self._remove(found[key], key, leftover)

    async def _left_behind(self, card: Card) -> list[RuntimePartition]:
        listed = await self._call(partial(self._partitions.existing, card))
        # read after the listing, which then has no partition of a claim that is not in it
        held = await self._sources.held() if listed else None
        return left_behind(listed, card.uuid, held) if held is not None else []

    async def _remove(self, card: Card, key: Key, leftover: _Leftover) -> None:
        _, number, profile = key
        what = f"{self._driver}: card {card.index} ({card.uuid}): partition {number} ({profile})"
        try:
            again = await self._left_behind(card)
        except DiscoveryError:
            return  # the next look says why
        if not any((each.number, each.profile) == (number, profile) for each in again):
            return
        try:
            await self._call(partial(self._partitions.destroy, card, number))
        except DiscoveryError as error:
            wait = leftover.backoff.next()
            leftover.due = _now() + wait
            note = f"{what}, which no claim has and no container uses, could not be removed: {error}; next try in {wait:.0f} s"
            log.warning("%s", note)
            # without the figure that changes, so that the event is not sent again each time
            self._sources.tell(NOT_REMOVED, note.rpartition(";")[0])
            self._sources.count(_FAILED)
            return
        del self._known[key]
        note = (
            f"{what} was left behind by the container runtime and is removed: no claim had it, and no container used it"
        )
        log.info("%s", note)
        self._sources.tell(REMOVED, note)
        self._sources.count(_DONE)

    def _report(self, problems: Mapping[str, Sequence[str]]) -> None:
        for problem, cards in problems.items():
            if problem not in self._problems:
                log.warning(
                    "%s: card %s: partitions that the container runtime left behind are not looked for: %s",
                    self._driver, ", ".join(cards), problem,
                )  # fmt: skip
        self._problems = frozenset(problems)


def left_behind(listed: Sequence[RuntimePartition], card: str, held: HeldProfiles) -> list[RuntimePartition]:
    used = Counter(each.profile for each in listed if not each.idle)
    return [each for each in listed if each.idle and used[each.profile] == held.get((card, each.profile), 0)]


def _now() -> float:
    return asyncio.get_running_loop().time()
