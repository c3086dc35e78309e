"""Watches over HTTP, with or without the list before them in the same request.

Used by `http.HttpCluster`, one for each.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final, Generic, TypeVar, cast

import aiohttp

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.decoding import error_of, read_added, read_event, read_status, split_lines, whole_lines
from hami_dra.kube.own_writes import OwnWrites
from hami_dra.kube.protocol import Broken, Interrupted, Invalid, Listing, Unavailable, WatchEvent
from hami_dra.kube.transport import Timeouts, Transport, retry_after

T = TypeVar("T", bound=Object)

INITIAL_EVENTS: Final = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
"""Without a resourceVersion: at least as new as a quorum read."""
_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the last initial event."""


class InitialEvents(Generic[T]):
    """Collects the objects of a watch that takes the place of a list (WatchList, KEP-3157): an ADDED
    event for each object, then a bookmark. Neither the API server nor we hold a page of them.

    An object that changes meanwhile is there once, in its last state.
    """

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._items: dict[str, T] = {}
        self._broken: dict[str, Broken] = {}

    def feed(self, lines: bytes) -> tuple[Listing[T], Sequence[bytes]] | None:
        """Take whole lines of the watch.

        Returns None until the end of the initial events; then all objects, and the lines that
        follow. Raises the ClusterError that an ERROR event stands for.
        """
        added = read_added(self._kind, lines)
        if added is not None:
            for item, problem in added:
                self._put(item, problem)
            return None
        texts = [line for line in lines.split(b"\n") if line.strip()]
        for number, line in enumerate(texts, start=1):
            read = read_event(self._kind, line)
            if read.type != "BOOKMARK":
                self._take(read)
            elif read.object.metadata.annotations.get(_END) == "true":
                version = read.object.metadata.resource_version
                return Listing(tuple(self._items.values()), version, tuple(self._broken.values())), texts[number:]
        return None

    def _take(self, event: WatchEvent[T] | Broken) -> None:
        if isinstance(event, Broken) or event.type == "DELETED":
            key = event.object.key
            self._items.pop(key, None)
            self._broken.pop(key, None)
            if isinstance(event, Broken) and event.type != "DELETED":
                self._broken[key] = Broken("ADDED", event.object, event.problem)
        else:
            self._put(event.object, event.problem)

    def _put(self, item: T, problem: str) -> None:
        key = item.key
        self._items[key] = item
        if problem:
            self._broken[key] = Broken("ADDED", item, problem)
        elif self._broken:
            self._broken.pop(key, None)


Query = Mapping[str, str]
_EARLY: Final = 2.0
"""Seconds. A watch that ends so much before its time was ended by something else."""
_Items = AsyncGenerator[Listing[T] | WatchEvent[T] | Broken]


class Watches:
    def __init__(self, transport: Transport, timeouts: Timeouts, own_writes: OwnWrites) -> None:
        self._transport = transport
        self._timeouts = timeouts
        self._own_writes = own_writes
        self._unlisted: set[str] = set()
        """Paths of the kinds of which the server does not send initial events."""

    def events(self, kind: Kind[T], path: str, query: Query) -> AsyncGenerator[WatchEvent[T] | Broken]:
        """See `Cluster.watch`. `query`: selectors, and the resourceVersion."""
        return cast("AsyncGenerator[WatchEvent[T] | Broken]", self._items(kind, path, query, initial=False))

    async def with_list(
        self, kind: Kind[T], path: str, query: Query
    ) -> tuple[Listing[T], AsyncGenerator[WatchEvent[T] | Broken]]:
        """See `lister_watcher.WatchLists`. `query`: selectors."""
        what = f"watch {kind.plural} from the beginning"
        if kind.path() in self._unlisted:
            raise Invalid(f"{what}: the server does not send initial events")
        items = self._items(kind, path, query, initial=True)
        try:
            async with asyncio.timeout(self._timeouts.watch):
                listing = await anext(items)
        except Invalid:
            self._unlisted.add(kind.path())
            raise
        except TimeoutError:
            self._unlisted.add(kind.path())
            raise Unavailable(f"{what}: not all objects came in time") from None
        return cast("Listing[T]", listing), cast("AsyncGenerator[WatchEvent[T] | Broken]", items)

    async def _items(self, kind: Kind[T], path: str, query: Query, *, initial: bool) -> _Items[T]:
        """Yield events. `initial`: after a Listing of everything."""
        what = f"watch {kind.plural}"
        seconds = self._timeouts.watch * (1 + random.random())  # noqa: S311 (spreads the reconnects of many clients)
        query = {
            **query,
            **(INITIAL_EVENTS if initial else {}),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeouts.connect, sock_read=self._timeouts.watch_silence
        )
        pending = bytearray()
        ends = boot_clock() + int(seconds) - _EARLY
        async with self._transport.response(what, path, query, timeout=timeout) as response:
            if response.status != 200:
                body = await response.read()
                if initial:  # the caller lists now, but not before the server wants to be asked again
                    await asyncio.sleep(retry_after(response, body))
                raise error_of(response.status, read_status(body), what)
            chunks = response.content.iter_any()
            if initial:
                listing, lines = await self._initial(kind, chunks, pending)
                yield listing
                del listing  # or it lives as long as the watch
                for line in lines:
                    yield read_event(kind, line)
            async for chunk in chunks:
                for line in split_lines(pending, chunk):
                    yield self._own_writes.event_of(kind, line) or read_event(kind, line)
        if boot_clock() < ends:
            raise Interrupted(f"{what}: ended by the server before its time")

    async def _initial(
        self, kind: Kind[T], chunks: AsyncIterator[bytes], pending: bytearray
    ) -> tuple[Listing[T], Sequence[bytes]]:
        """Return what `InitialEvents.feed` returns in the end. Raises ClusterError."""
        found = InitialEvents(kind)
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._timeouts.initial_silence) as limit:
                async for chunk in chunks:
                    limit.reschedule(now() + self._timeouts.initial_silence)
                    if (lines := whole_lines(pending, chunk)) and (everything := found.feed(lines)) is not None:
                        return everything
        except TimeoutError:
            self._unlisted.add(kind.path())
            raise Unavailable(f"watch {kind.plural}: the server does not say when all objects were sent") from None
        raise Unavailable(f"watch {kind.plural}: it ended before all objects were sent")
