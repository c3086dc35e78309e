"""A memory cluster that tests steer: count, delay and fail requests, hold watches back, forget history, store anything."""

import asyncio
from collections import Counter
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass

from hami_dra.kube.embedded.api_server import MemoryCluster, Request, rules
from hami_dra.kube.embedded.api_server.history import Record
from hami_dra.kube.embedded.api_server.state import object_key

_LATE: ContextVar[list] = ContextVar("_LATE")
"""Errors that the request in progress raises once it has taken effect."""


@dataclass(slots=True)
class Fault:
    """A planned failure; `applied`: the request takes effect first."""

    error: Exception
    matches: object
    applied: bool
    times: int


class SteeredCluster(MemoryCluster):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.requests = Counter()
        """Calls so far, by `Request.label`: `patch resourceclaims/status`."""
        self.hooks = []
        """Awaited with each Request before it is carried out: the place to delay it or to let somebody else write first."""
        self._faults = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._held = 0
        """Events that a paused watch has in hand."""
        self._drops = 0

    def fail_next(self, error, *, verb="", kind=None, name="", subresource=None, applied=False, times=1):
        """Raise `error` on the next matching request (any write, if no verb is named); `applied`: after it took effect."""

        def matches(request):
            return (
                (request.verb == verb if verb else request.is_write)
                and (kind is None or request.kind == kind)
                and (not name or request.name == name)
                and (subresource is None or request.subresource == subresource)
            )

        self._faults.append(Fault(error, matches, applied, times))

    def clear_faults(self):
        """Forget what `fail_next` planned and no request has met."""
        self._faults.clear()

    def pause_watches(self):
        """Events pile up until `resume_watches`."""
        self._flowing.clear()

    def resume_watches(self):
        self._flowing.set()

    def close_watches(self, error=None, *, drop=False):
        """End every watch, as a server time-out does, or make it raise `error`: after what is queued, or dropping that."""
        for table in self._state.tables():
            for watcher in table.watchers:
                if drop:
                    watcher.pending.clear()
                watcher.finish(error or True)
        self._drops += drop

    def forget_history(self):
        """As etcd's compaction: a watch that starts from an older resourceVersion is Gone."""
        for table in self._state.tables():
            table.forget(self._state.newest)

    def send_bookmarks(self):
        newest = self._state.newest
        bookmark = Record({"metadata": {"resourceVersion": str(newest)}}, newest)
        for table in self._state.tables():
            for watcher in table.watchers:
                watcher.deliver("BOOKMARK", bookmark)

    def put_raw(self, kind, raw):
        """Store an object unchecked, as an older or newer API server may have left it."""
        meta = raw["metadata"]
        key = object_key(str(meta.get("namespace", "")), str(meta["name"]))
        stored = rules.without_nulls(raw)
        stored["metadata"].setdefault("uid", self._state.new_uid())
        self._state.store(kind, key, self._state.find(kind, key), self._state.next_record(stored))

    @property
    def has_undelivered_events(self):
        return bool(self._held) or super().has_undelivered_events

    # --- verbs -------------------------------------------------------------------------------------------------------

    async def get(self, *arguments, **options):
        return await _with_late_errors(super().get(*arguments, **options))

    async def get_raw(self, *arguments, **options):
        return await _with_late_errors(super().get_raw(*arguments, **options))

    async def list(self, *arguments, **options):
        return await _with_late_errors(super().list(*arguments, **options))

    async def create(self, *arguments, **options):
        return await _with_late_errors(super().create(*arguments, **options))

    async def patch(self, *arguments, **options):
        return await _with_late_errors(super().patch(*arguments, **options))

    async def delete(self, *arguments, **options):
        return await _with_late_errors(super().delete(*arguments, **options))

    async def evict(self, *arguments, **options):
        return await _with_late_errors(super().evict(*arguments, **options))

    async def bind(self, *arguments, **options):
        return await _with_late_errors(super().bind(*arguments, **options))

    async def watch(self, *arguments, **options):
        async with aclosing(super().watch(*arguments, **options)) as events:
            async for event in events:
                drops = self._drops
                self._held += 1
                try:
                    await self._flowing.wait()
                finally:
                    self._held -= 1
                if drops == self._drops:
                    yield event

    async def _begin(self, request: Request) -> None:
        self.requests[request.label] += 1
        await super()._begin(request)
        for hook in self.hooks:
            await hook(request)
        for fault in self._faults:
            if fault.matches(request):
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                if not fault.applied or request.verb == "watch":
                    raise fault.error
                _LATE.get().append(fault.error)
                return


async def _with_late_errors(verb):
    token = _LATE.set([])
    try:
        result = await verb
        if errors := _LATE.get():
            raise errors[0]
        return result
    finally:
        _LATE.reset(token)
