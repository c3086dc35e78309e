"""Concurrent work on objects in which no object and no namespace can delay another.

Used by every loop that sends requests for one object after another (in the controller: gates, claim
templates, orphans, overlaps, quota annotations and events; in the node driver: the status of
claims). A request may be delayed arbitrarily by the API server or by an admission webhook for the
object's namespace. Each namespace has a lane, in which at most `width` pieces of work run at a
time; waiting lanes take turns for the `total`. As in client-go's work queues, a key waits once,
with the work that was added last, and a key that is added while its work runs is processed again
afterwards, never twice at a time.

    async with Lanes(width=4, total=16) as lanes:
        lanes.add("team", "team/web-1", partial(write, "team/web-1"))
    # here all of it is done
"""

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Self

Work = Callable[[], Awaitable[object]]
_Key = tuple[Hashable, Hashable]
"""Lane and key."""


class Lanes:
    """Work that is added before the block is entered waits until then. An error in any work ends
    all of it, in an exception group.
    """

    def __init__(self, width: int, total: float = math.inf) -> None:
        self._width = width
        self._total = total
        self._group: asyncio.TaskGroup | None = None
        self._waiting: dict[Hashable, OrderedDict[Hashable, Work]] = {}
        """By lane, in order of arrival; no entry for a lane without waiting work."""
        self._length = 0
        self._turns: OrderedDict[Hashable, None] = OrderedDict()
        """Lanes that wait and have room, the next one first."""
        self._running: Counter[Hashable] = Counter()
        self._in_work: dict[_Key, Work | None] = {}
        """With the work to do next for the same key."""
        self._timers: dict[_Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return self._length

    def waits(self, lane: Hashable, key: Hashable) -> bool:
        return key in self._waiting.get(lane, ())

    async def __aenter__(self) -> Self:
        group = asyncio.TaskGroup()
        await group.__aenter__()
        self._group = group
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._group is not None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        try:
            await self._group.__aexit__(kind, error, traceback)
        finally:
            self._group = None

    def add(self, lane: Hashable, key: Hashable, work: Work) -> None:
        """Do `work` as soon as it is the lane's turn. `lane`: usually a namespace."""
        if (timer := self._timers.pop((lane, key), None)) is not None:
            timer.cancel()
        if (lane, key) in self._in_work:
            self._in_work[lane, key] = work
            return
        keys = self._waiting.setdefault(lane, OrderedDict())
        self._length += key not in keys
        keys[key] = work  # one that waits already keeps its place
        self._offer(lane)
        self._start()

    def add_later(self, seconds: float, lane: Hashable, key: Hashable, work: Work) -> None:
        """Add it after a pause, unless the key is added before."""
        if (timer := self._timers.pop((lane, key), None)) is not None:
            timer.cancel()
        self._timers[lane, key] = asyncio.get_running_loop().call_later(seconds, self.add, lane, key, work)

    def drop_one(self) -> None:
        """Drop the youngest work of the longest lane: a namespace that floods the lanes loses first."""
        lane = max(self._waiting, key=lambda name: len(self._waiting[name]))
        self._waiting[lane].popitem()
        self._length -= 1
        if not self._waiting[lane]:
            del self._waiting[lane]
            self._turns.pop(lane, None)

    def _offer(self, lane: Hashable) -> None:
        """Give the lane a turn, behind all others, if it waits and has room."""
        if lane in self._waiting and self._running[lane] < self._width:
            self._turns.setdefault(lane)

    def _start(self) -> None:
        while self._group is not None and self._turns and len(self._in_work) < self._total:
            lane, _ = self._turns.popitem(last=False)
            keys = self._waiting[lane]
            key, work = keys.popitem(last=False)
            self._length -= 1
            if not keys:
                del self._waiting[lane]
            self._in_work[lane, key] = None
            self._running[lane] += 1
            self._offer(lane)
            self._group.create_task(self._run(lane, key, work), name=str(key))

    async def _run(self, lane: Hashable, key: Hashable, work: Work) -> None:
        await work()  # an error, or a cancellation, ends the group: nothing follows
        self._running[lane] -= 1
        if not self._running[lane]:
            del self._running[lane]
        if (again := self._in_work.pop((lane, key))) is not None:
            self.add(lane, key, again)
        self._offer(lane)
        self._start()
