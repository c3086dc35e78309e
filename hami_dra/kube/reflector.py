"""Keeps a local copy of one kind up to date: list, watch, resume, and report changes to a handler.

Called by the controller, the driver and the embedded control plane, one Reflector per kind. In: a
Cluster. Out: a `Store`, and `handler.changed(old, new)` for every difference, in order, plus
`handler.synced()` after each list. It must not write to the cluster. No single object stops the
others, be it unreadable or one on which a handler fails.

Versions are compared as integers, which Kubernetes guarantees for its own kinds (KEP-5504).
Everything up to `_seen` is in the store; an object handed to `observe` may be ahead of that, and
older events about it are ignored.

Versions go back when etcd is restored from a backup. A list shows it, a watch does not: from a
version that the server has not reached yet it waits in silence, until that number was given to
something else. Decisions that must not rest on what is lost therefore check after each watch
(`on_rewound`), and wait until that is done (`wait_current`). Others `list_again` when it is called.
API servers are stopped for a restore, so after a watch that lasted its time the check is whether
the collection's version went back; after any other it is a list, since versions may have been
skipped, or passed again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube import protocol
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.lister_watcher import ListerWatcher
from hami_dra.kube.store import Store

T = TypeVar("T", bound=Object)
T_contra = TypeVar("T_contra", bound=Object, contravariant=True)

log = logging.getLogger(__name__)

_FAILED_WATCHES_BEFORE_LIST: Final = 3
"""After this many failed watches list again: the server may not know the version any more (etcd restored)."""


class Handler(Protocol[T_contra]):
    """Receives changes. An object deleted and created again is reported as (old, None), (None, new)."""

    def changed(self, old: T_contra | None, new: T_contra | None) -> None: ...

    def synced(self) -> None: ...


def log_broken(kind: Kind[Any], broken: protocol.Broken) -> None:
    """Log one line: kind, namespace, name, and what cannot be read."""
    log.warning("%s %s cannot be read: %s", kind.name, broken.object.key, broken.problem)


@dataclass(eq=False)
class Reflector(Generic[T]):
    """Keeps a copy with `run()` until cancelled.

    Cluster errors are retried indefinitely; a handler's error is logged, and the next object
    follows. `problem` says why the copy may be stale, or is empty; `lists` and `failures` count.
    `unreadable` has, by key, the objects that cannot be read completely now. A completely
    unreadable version leaves the last good one in the store. `on_broken` is called once for each
    version of such an object. `is_denied`: the latest list was refused because of a missing
    permission, or because the cluster does not serve the kind; `on_denied` is called when that
    begins, and tells it in place of the log. `on_rewound`: what to call after a list that shows a
    past state of the cluster. Given, a watch that ended early is followed by a list, and any other
    by a comparison of versions; otherwise each is followed by another watch from where it ended.
    """

    cluster: protocol.Cluster
    kind: Kind[T]
    handler: Handler[T]
    _: KW_ONLY
    store: Store[T] = field(default_factory=Store)
    scope: protocol.Scope = field(default_factory=protocol.Scope)
    on_broken: Callable[[protocol.Broken], None] | None = None
    on_denied: Callable[[protocol.ClusterError], None] | None = None
    on_rewound: Callable[[], None] | None = None
    guard: LoopGuard | None = None
    backoff: Backoff = field(default_factory=Backoff)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], float] = time.monotonic
    problem: str = ""
    unreadable: dict[str, protocol.Broken] = field(default_factory=dict)
    is_denied: bool = False
    lists: int = 0
    failures: int = 0
    _heard: float = field(init=False)
    _source: ListerWatcher[T] = field(init=False)
    _guard: LoopGuard = field(init=False)
    _seen: int = 0
    _synced: asyncio.Event = field(default_factory=asyncio.Event)
    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    _current: asyncio.Event = field(default_factory=asyncio.Event)
    _outdated: bool = False
    _watching: asyncio.Timeout | None = None
    _listing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._heard = self.now()
        self._source = ListerWatcher(self.cluster, self.kind, self.scope)
        self._guard = self.guard or LoopGuard(f"watch {self.kind.plural}")

    @property
    def is_synced(self) -> bool:
        """Return whether a list was ever completed."""
        return self._synced.is_set()

    @property
    def silence(self) -> float:
        """Return the seconds since the API server last sent anything.

        An idle watch delivers a bookmark about once a minute.
        """
        return self.now() - self._heard

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_answered(self) -> None:
        """Wait until a list was completed or denied."""
        await self._answered.wait()

    async def wait_current(self) -> None:
        """Wait until the store was listed, or is being watched, since the connection last ended.

        Only with `on_rewound` does this exclude that the server has gone back to a past state.
        """
        await self._current.wait()

    def list_again(self) -> None:
        """End the watch and list, because the server has gone back to a past state."""
        self._outdated = True
        self._current.clear()
        if self._watching is not None and not self._watching.expired():
            self._watching.reschedule(asyncio.get_running_loop().time())

    @property
    def is_current(self) -> bool:
        """Return whether `wait_current` would return at once."""
        return self._current.is_set()

    async def run(self) -> None:
        while True:
            try:
                await self._list_unless_denied()
                await self._watch_until_gone()
            except protocol.ClusterError as error:
                await self._pause(f"list {self.kind.plural}: {error}")
            except Exception as error:  # nothing that an API server sends may end the loop
                if not self._guard.contains("list and watch", error):
                    raise
                await self._pause(f"list {self.kind.plural}: internal error, see the log: {error!r}")
            finally:
                await self._source.close()

    async def relist(self) -> None:
        """List again by a quorum read, while the watch continues. Raises ClusterError; the store is then unchanged."""
        await self._list(self._source.list, watching=True)

    def observe(self, new: T) -> None:
        """Report the result of the caller's own write, so that the store is never behind our own writes."""
        version = _version(new)
        if version <= self._seen:
            return
        current = self.store.get(key := new.key)
        if current is None or version > _version(current):
            self._report(current, new, key)

    # --- list -------------------------------------------------------------------------------------

    async def _list_unless_denied(self) -> None:
        try:
            await self._list(self._source.begin)
        except (protocol.Forbidden, protocol.NotFound) as error:
            if not self.is_denied:
                self.is_denied = True
                if self.on_denied is not None:
                    self.on_denied(error)
            self._answered.set()
            raise

    async def _list(self, read: Callable[[], Awaitable[protocol.Listing[T]]], *, watching: bool = False) -> None:
        async with self._listing:
            self._outdated = False
            seen = self._seen
            listing = await read()
            self.lists += 1
            self._heard = self.now()
            newest = int(listing.resource_version)
            rewound = self._is_past(listing, seen, watching=watching)
            if newest >= self._seen or rewound:
                self._absorb(listing, newest, trust_all=rewound)
                self._seen = newest
            if rewound and watching:
                self.list_again()  # the watch waits for versions that are long known
            self._recovered()
            self.is_denied = False
            self._synced.set()
            self._answered.set()
            self._current.set()
            with self._guard.each("list"):
                self.handler.synced()
        if rewound:
            log.warning("%s: the API server has gone back to a past state (etcd restored?)", self.kind.plural)
            if self.on_rewound is not None:
                self.on_rewound()

    def _is_past(self, listing: protocol.Listing[T], seen: int, *, watching: bool) -> bool:
        """Return whether a list shows a state from before version `seen`, which was known when the
        list was asked for: only a server that lost data (etcd restored) does.

        Its version is older; or versions were skipped at the restore, and an object is older than
        the one that is known, or is one that was known to be gone (where no watch goes on, whose
        later news may have removed it).
        """
        if int(listing.resource_version) < seen:
            return True
        if self.on_rewound is None or not seen:
            return False
        for item in listing.items:
            if (version := _version(item)) <= seen:
                current = self.store.get(item.key)
                if (not watching) if current is None else version < _version(current) <= seen:
                    return True
        return False

    def _absorb(self, listing: protocol.Listing[T], newest: int, *, trust_all: bool) -> None:
        broken = {each.object.key: each for each in listing.broken}
        keys = [item.key for item in listing.items]
        present = {*broken, *keys}
        for key in self.unreadable.keys() - broken.keys():
            del self.unreadable[key]
        for each in broken.values():
            self._note(each)
        for old in list(self.store):
            with self._guard.each(old.key):
                if old.key not in present and (trust_all or _version(old) <= newest):
                    self._report(old, None)
        for key, item in zip(keys, listing.items, strict=True):
            try:
                current = self.store.get(key)
                if current is None or _is_news(item, current, newest) or (trust_all and item != current):
                    self._report(current, item, key)
            except Exception as error:  # not `LoopGuard.each`: that costs a tenth of a start
                if not self._guard.contains(key, error):
                    raise

    # --- watch ------------------------------------------------------------------------------------

    async def _watch_until_gone(self) -> None:
        """Watch until a new list is required."""
        failures = 0
        while failures < _FAILED_WATCHES_BEFORE_LIST and not self._outdated:
            before, lasted, problem = self._seen, False, ""
            try:
                await self._watch_until_outdated()
                lasted = True
            except protocol.Gone:
                return
            except protocol.Interrupted:
                pass
            except protocol.ClusterError as error:
                problem = f"watch {self.kind.plural}: {error}"
            is_idle = self._seen == before
            failures = failures + 1 if problem and is_idle else 0
            if problem or (is_idle and not self._outdated):
                # no problem: closed by the server before the first event; avoid a busy loop
                await self._pause(problem)
            if self.on_rewound is not None and not (lasted and await self._source.version() >= self._seen):
                return

    async def _watch_until_outdated(self) -> None:
        limit = self._watching = asyncio.timeout(None)
        self._current.set()
        try:
            async with limit:
                await self._watch_once()
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._watching = None
            self._current.clear()

    async def _watch_once(self) -> None:
        async with aclosing(self._source.watch(self._seen)) as events:
            async for event in events:
                self._recovered()
                self._heard = self.now()
                key = event.object.key
                with self._guard.each(key):
                    version = _version(event.object)
                    if version > self._seen:
                        self._take(event, key, version)

    def _take(self, event: protocol.WatchEvent[T] | protocol.Broken, key: str, version: int) -> None:
        self._seen = version
        if event.type == "BOOKMARK":
            return
        current = self.store.get(key)
        observed = _version(current) if current is not None else 0
        if event.type == "DELETED":
            self.unreadable.pop(key, None)
            # Equal: our own observed write removed the last finalizer.
            if current is not None and version >= observed:
                self._report(current, None)
            return
        if version <= observed:
            return
        if event.problem:
            self._note(protocol.Broken(event.type, event.object, event.problem))
        else:
            self.unreadable.pop(key, None)
        if not isinstance(event, protocol.Broken):
            self._report(current, event.object, key)

    def _note(self, broken: protocol.Broken) -> None:
        """Report an unreadable object, unless this version was reported before."""
        key = broken.object.key
        known = self.unreadable.get(key)
        self.unreadable[key] = broken
        if known is None or known.object.metadata.resource_version != broken.object.metadata.resource_version:
            with self._guard.each(key):
                (self.on_broken or partial(log_broken, self.kind))(broken)

    # --- both -------------------------------------------------------------------------------------

    def _report(self, old: T | None, new: T | None, key: str = "") -> None:
        """`key`: that of `new`, where it is at hand."""
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            self._report(old, None)
            old = None
        if new is not None:
            self.store.put(new, key)
        elif old is not None:
            self.store.remove(old.key)
        self.handler.changed(old, new)

    def _recovered(self) -> None:
        if self.problem:
            log.info("%s: up to date again", self.kind.plural)
        self.problem = ""
        self.backoff.reset()

    async def _pause(self, problem: str) -> None:
        if problem:
            self.failures += 1
        told = self.is_denied and self.on_denied is not None
        if problem and problem != self.problem and not told:
            log.warning("%s; trying again", problem)
        self.problem = problem
        await self.sleep(self.backoff.next())


def _version(item: Object) -> int:
    return int(item.metadata.resource_version)


def _is_news(listed: Object, known: Object, newest: int) -> bool:
    """Return whether an object of a list of version `newest` takes the place of the known one.

    Only an own write that the list does not know yet stays. An older one is news, too: of a server
    that lost data and skipped versions.
    """
    version = _version(listed)
    return version > (held := _version(known)) or version < held <= newest
