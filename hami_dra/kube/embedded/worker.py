"""Frame of the embedded controllers: shared watched copies, and a queue of keys processed one by one.

Nothing polls: work starts with a watch event and ends when the queues are empty.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.embedded.api_server import MemoryCluster
from hami_dra.kube.protocol import ClusterError, Conflict, NotFound
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.store import IndexFunction, Store

T = TypeVar("T", bound=Object)

log = logging.getLogger(__name__)

_AT_ONCE: Final = 20
"""Number of consecutive conflicts that are retried without a pause."""


class WatchedStore(Generic[T]):
    """Copy of one kind; `listeners` receive every change, in order of registration.

    Our own writes are in it at once: the next decision must not be based on an older copy.
    """

    def __init__(self, cluster: MemoryCluster, kind: Kind[T], **indices: IndexFunction[T]) -> None:
        self._cluster = cluster
        self._kind = kind
        self.store: Store[T] = Store(**indices)
        self.listeners: list[Callable[[T | None, T | None], None]] = []
        self.reflector = Reflector(cluster, kind, self, store=self.store, backoff=Backoff(first=0.001, most=0.1))

    def changed(self, old: T | None, new: T | None) -> None:
        for listener in self.listeners:
            listener(old, new)

    def synced(self) -> None:
        pass

    def on_change(self, act: Callable[[T], None]) -> None:
        """Call `act` with every new state of an object, and with the last one when it is deleted."""
        self.listeners.append(lambda old, new: act(new or old))  # type: ignore[arg-type]  # one of the two exists

    def on_present(self, act: Callable[[T], None]) -> None:
        """Call `act` with every new state of an existing object."""
        self.listeners.append(lambda _, new: act(new) if new is not None else None)

    async def create(self, body: dict[str, Any], namespace: str) -> T:
        return self._observed(await self._cluster.create(self._kind, body, namespace=namespace))

    async def patch(self, item: Object, patch: dict[str, Any], subresource: str = "") -> T:
        meta = item.metadata
        return self._observed(
            await self._cluster.patch(self._kind, meta.name, patch, namespace=meta.namespace, subresource=subresource)
        )

    async def read(self, name: str, namespace: str) -> T:
        return self._observed(await self._cluster.get(self._kind, name, namespace))

    async def delete(self, item: Object, grace_period_seconds: int | None = None) -> None:
        meta = item.metadata
        await self._cluster.delete(
            self._kind, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period_seconds=grace_period_seconds
        )

    def _observed(self, written: T) -> T:
        self.reflector.observe(written)
        return written


class Worker:
    """Calls `sync(key)` for every key added, never concurrently; after a conflict or failure again.

    `first` picks the next of the waiting keys; default: the oldest.
    """

    def __init__(
        self, name: str, sync: Callable[[str], Awaitable[None]], first: Callable[[Iterable[str]], str] | None = None
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
        """Return whether a key is processed or waiting; keys that wait for a retry do not count."""
        return self._working or bool(self._waiting)

    @property
    def retrying(self) -> bool:
        """Return whether a key waits for a retry after a failed request."""
        return bool(self._timers)

    def add(self, key: str) -> None:
        self._waiting[key] = None
        self._wake.set()

    def add_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.add(key)

    def _retry(self, key: str) -> None:
        del self._timers[key]
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
            # deleted in the meantime: its watch event triggers the rest
            log.debug("%s %s: %s", self._name, key, error)
        except Conflict:
            # Our copy is behind, usually by a few loop iterations; if it stays behind, time must
            # advance.
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
