"""One resource of the memory cluster: its objects, its recent changes, and its watchers.

Called by `memory.MemoryCluster` only. Records are never changed; every write adds a new one.
"""

import asyncio
from collections import deque
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field

from hami_dra.api.kinds import RESOURCE_CLAIM, Kind
from hami_dra.api.meta import Object
from hami_dra.kube.protocol import EventType, Gone, Unavailable
from hami_dra.kube.salvage import identity, salvaged_claim
from hami_dra.kube.selectors import Predicate

T = TypeVar("T", bound=Object)


class Record:
    """A stored version of an object: raw JSON (read only) and the Structs decoded from it."""

    __slots__ = ("_decoded", "raw", "version")

    def __init__(self, raw: dict[str, Any], version: int) -> None:
        self.raw = raw
        self.version = version
        self._decoded: dict[tuple[str, type[Object]], tuple[Object, str]] = {}

    def read(self, kind: Kind[T]) -> T:
        """Return the Struct. Raises msgspec.ValidationError if the object does not fit it."""
        return self._read(kind)[0]

    def shown(self, kind: Kind[T]) -> tuple[T | None, Object, str]:
        """Return what a list or a watch shows: the object or None, its known part, what is unreadable or ""."""
        try:
            found, problem = self._read(kind)
        except msgspec.ValidationError as error:
            if kind.name != RESOURCE_CLAIM.name:
                return None, identity(self.raw), str(error)
            salvaged = cast("T", salvaged_claim(self.raw, str(error)))
            return salvaged, salvaged, str(error)
        return found, found, problem

    def _read(self, kind: Kind[T]) -> tuple[T, str]:
        key = (kind.api_version, kind.type)
        found = self._decoded.get(key)
        if found is None:
            decoded = msgspec.json.decode(self.encoded(kind), type=kind.type)
            found = decoded, kind.settled(decoded)
            self._decoded[key] = found
        return found  # type: ignore[return-value] # the key contains the type

    def encoded(self, kind: Kind[T]) -> bytes:
        return msgspec.json.encode({**self.raw, "apiVersion": kind.api_version, "kind": kind.name})


class RecordedChange(Struct, frozen=True):
    """One change. `before` is None for a creation.

    `after` is the last state (with the deletion's version) for a removal.
    """

    version: int
    before: Record | None
    after: Record
    removed: bool = False


class Watcher(Struct, eq=False):
    """One watch. `end`: None while it runs, True if the server closed it, else the error to raise."""

    predicate: Predicate
    pending: deque[tuple[EventType, Record]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    end: Exception | bool | None = None

    def offer(self, change: RecordedChange) -> None:
        """Queue a change; objects that start or stop matching appear as ADDED and DELETED, as upstream."""
        was = change.before is not None and self.predicate(change.before.raw)
        now = not change.removed and self.predicate(change.after.raw)
        if was or now:
            event: EventType = "DELETED" if not now else "MODIFIED" if was else "ADDED"
            self.deliver(event, change.after)

    def deliver(self, event: EventType, record: Record) -> None:
        """Queue an event, unless the watch has ended: after dropped events its history would have a gap."""
        if self.end is None:
            self.pending.append((event, record))
            self.wake.set()

    def finish(self, reason: Exception | bool) -> None:
        self.end = reason
        self.wake.set()


class Table:
    """Objects of one resource, by `namespace/name` or `name`.

    `history` bounds the changes that a watch may resume from.
    """

    def __init__(self, history: int) -> None:
        self.objects: dict[str, Record] = {}
        self.watchers: list[Watcher] = []
        self._changes: deque[RecordedChange] = deque()
        self._history = history
        self._forgotten = 0

    def apply(self, key: str, change: RecordedChange) -> None:
        if change.removed:
            self.objects.pop(key, None)
        else:
            self.objects[key] = change.after
        self._changes.append(change)
        if len(self._changes) > self._history:
            self._forgotten = self._changes.popleft().version
        for watcher in self.watchers:
            watcher.offer(change)

    def forget(self, version: int) -> None:
        """Drop the history up to `version`: watches from before it are Gone."""
        self._changes.clear()
        self._forgotten = version

    def watcher(self, since: int, newest: int, predicate: Predicate) -> Watcher:
        """Return a watcher. Raises Gone if `since` is older than the history, Unavailable if it is newer."""
        if since < self._forgotten:
            raise Gone(f"too old resource version: {since} ({self._forgotten})")
        if since > newest:
            raise Unavailable(f"Too large resource version: {since}, current: {newest}")
        watcher = Watcher(predicate)
        for change in self._changes:
            if change.version > since:
                watcher.offer(change)
        self.watchers.append(watcher)
        return watcher
