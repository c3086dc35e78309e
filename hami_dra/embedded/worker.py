"""The frame of every controller in here: watched copies that all of them share, and a queue of keys worked off one at a time.

Called by the modules beside it. Nothing polls: work begins with a watch event and ends when the queues are empty.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.memory import MemoryCluster
from hami_dra.cluster.protocol import ClusterError, Conflict, NotFound
from hami_dra.cluster.reflector import Reflector
from hami_dra.cluster.store import IndexFunction, Store

T = TypeVar("T", bound=Object)

log = logging.getLogger(__name__)

_AT_ONCE: Final = 20
"""So many lost races in a row are tried again without a pause."""


class Watched(Generic[T]):
    """One kind's copy; `listeners` hear every change, in order of registration."""

    def __init__(self, cluster: MemoryCluster, kind: Kind[T], **indices: IndexFunction[T]) -> None:
        self.store: Store[T] = Store(**indices)
        self.listeners: list[Callable[[T | None, T | None], None]] = []
        self.reflector = Reflector(cluster, kind, self, store=self.store, backoff=Backoff(first=0.001, most=0.1))

    def changed(self, old: T | None, new: T | None) -> None:
        for listener in self.listeners:
            listener(old, new)

    def synced(self) -> None:
        pass

    def on_present(self, act: Callable[[T], None]) -> None:
        """Call `act` with every new state of an object that is there."""
        self.listeners.append(lambda _, new: act(new) if new is not None else None)

    def observe(self, written: T) -> None:
        """The result of an own write: the next decision must not be made on an older copy."""
        self.reflector.observe(written)


class Worker:
    """Calls `sync(key)` for every key added, never twice at a time; a key that lost a race or got no answer comes again.

    `first` picks which of the waiting keys is next; without it, the oldest.
    """

    def __init__(
        self,
        name: str,
        sync: Callable[[str], Awaitable[None]],
        first: Callable[[Iterable[str]], str] | None = None,
    ) -> None:
        self._name = name
        self._sync = sync
        self._first = first or (lambda keys: next(iter(keys)))
        self._waiting: dict[str, None] = {}
        self._retries: dict[str, Backoff] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._conflicts: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._working = False

    @property
    def busy(self) -> bool:
        """Whether something is being done or waits for its turn; a key that waits for a retry does not count."""
        return self._working or bool(self._waiting)

    @property
    def retrying(self) -> bool:
        """Whether a key waits for another try after a request that failed."""
        return bool(self._timers)

    def add(self, key: str) -> None:
        self._waiting[key] = None
        self._wake.set()

    def _retry(self, key: str) -> None:
        del self._timers[key]
        self.add(key)

    def add_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.add(key)

    async def run(self) -> None:
        while True:
            while self._waiting:
                key = self._first(self._waiting)
                del self._waiting[key]
                if timer := self._timers.pop(key, None):
                    timer.cancel()
                self._working = True
                try:
                    await self._once(key)
                finally:
                    self._working = False
            self._wake.clear()
            await self._wake.wait()

    async def _once(self, key: str) -> None:
        try:
            await self._sync(key)
        except NotFound as error:
            log.debug("%s %s: %s", self._name, key, error)  # gone in the meantime: its watch event tells the rest
        except Conflict:
            # our copy is behind, mostly by a few turns of the loop; where it stays so, time must go on
            self._conflicts[key] += 1
            if self._conflicts[key] <= _AT_ONCE:
                self.add(key)
            else:
                self._later(key)
            return
        except ClusterError as error:
            log.warning("%s %s: %s; trying again", self._name, key, error)
            self._later(key)
            return
        self._retries.pop(key, None)
        self._conflicts.pop(key, None)

    def _later(self, key: str) -> None:
        wait = self._retries.setdefault(key, Backoff(first=0.05, most=5.0)).next()
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(wait, self._retry, key)
