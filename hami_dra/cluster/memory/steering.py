"""What tests may do to a memory cluster beyond the verbs: count, delay, fail, hold back, forget.

`MemoryCluster` inherits it, so that a test reads `cluster.fail_next(...)`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hami_dra.api.kinds import Kind
from hami_dra.cluster.memory import rules
from hami_dra.cluster.memory.history import Record
from hami_dra.cluster.memory.state import State, object_key
from hami_dra.cluster.protocol import Body, ClusterError


@dataclass(frozen=True, slots=True)
class Request:
    """One call, as hooks see it. `verb` is get, list, watch, create, patch, delete or bind."""

    verb: str
    kind: Kind[Any]
    namespace: str
    name: str
    subresource: str = ""
    body: Any = None

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "patch", "delete", "bind")

    @property
    def label(self) -> str:
        return f"{self.verb} {self.kind.plural}" + (f"/{self.subresource}" if self.subresource else "")


@dataclass(slots=True)
class Fault:
    """A planned failure; `applied`: the request takes effect first."""

    error: ClusterError
    matches: Callable[[Request], bool]
    applied: bool
    times: int


class Steering:
    def __init__(self, state: State) -> None:
        self.requests: Counter[str] = Counter()
        """Calls so far, by `Request.label`: `patch resourceclaims/status`."""
        self.hooks: list[Callable[[Request], Awaitable[None]]] = []
        """Awaited before each request is carried out: the place to delay it or to let somebody else write first."""
        self._state = state
        self._faults: list[Fault] = []
        self._flowing = asyncio.Event()
        self._flowing.set()

    def fail_next(
        self,
        error: ClusterError,
        *,
        verb: str = "",
        kind: Kind[Any] | None = None,
        name: str = "",
        subresource: str | None = None,
        applied: bool = False,
        times: int = 1,
    ) -> None:
        """Raise `error` on the next matching request (any write, if no verb is named); `applied`: after it took effect."""

        def matches(request: Request) -> bool:
            return (
                (request.verb == verb if verb else request.is_write)
                and (kind is None or request.kind == kind)
                and (not name or request.name == name)
                and (subresource is None or request.subresource == subresource)
            )

        self._faults.append(Fault(error, matches, applied, times))

    def clear_faults(self) -> None:
        """What `fail_next` planned and nobody met."""
        self._faults.clear()

    def pause_watches(self) -> None:
        """Events pile up until `resume_watches`."""
        self._flowing.clear()

    def resume_watches(self) -> None:
        self._flowing.set()

    def close_watches(self, error: ClusterError | None = None, *, drop: bool = False) -> None:
        """End every watch, as a server time-out does, or make it raise `error`: after what is queued, or dropping that."""
        for table in self._state.tables():
            for watcher in table.watchers:
                if drop:
                    watcher.pending.clear()
                watcher.finish(error or True)

    def forget_history(self) -> None:
        """As etcd's compaction: a watch that starts from an older resourceVersion is Gone."""
        for table in self._state.tables():
            table.forget(self._state.newest)

    def send_bookmarks(self) -> None:
        newest = self._state.newest
        bookmark = Record({"metadata": {"resourceVersion": str(newest)}}, newest)
        for table in self._state.tables():
            for watcher in table.watchers:
                watcher.deliver("BOOKMARK", bookmark)

    def put_raw(self, kind: Kind[Any], raw: Body) -> None:
        """Store an object unchecked, as an older or newer API server may have left it."""
        meta = raw["metadata"]
        key = object_key(str(meta.get("namespace", "")), str(meta["name"]))
        stored = rules.without_nulls(raw)
        stored["metadata"].setdefault("uid", self._state.new_uid())
        self._state.store(kind, key, self._state.find(kind, key), self._state.next_record(stored))

    @property
    def has_undelivered_events(self) -> bool:
        """Whether a watcher has not taken yet what was written."""
        return any(watcher.pending for table in self._state.tables() for watcher in table.watchers)

    def knows(self, uid: str) -> bool:
        """Whether an object with that uid is stored."""
        return self._state.knows(uid)

    def timestamp(self) -> str:
        """Now, by the cluster's clock, as objects carry it."""
        return self._state.timestamp()

    async def _meet(self, request: Request) -> Fault | None:
        """Runs the hooks; raises a planned fault, or returns the one that is to come after the effect."""
        for hook in self.hooks:
            await hook(request)
        for fault in self._faults:
            if fault.matches(request):
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                if fault.applied:
                    return fault
                raise fault.error
        return None
