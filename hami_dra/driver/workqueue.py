"""Work by key: each key is worked on by one worker at a time, never forgotten, and retried with growing pauses.

Used by the publisher and the fleet. In: keys, as often as somebody thinks there may be work. Out: calls of `work(key)`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.guard import LoopGuard, count_nothing
from hami_dra.cluster.protocol import ClusterError

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """`run()` until cancelled. An error of `work` is a reason to try again later. `count`: of a `LoopGuard`."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int = 8,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        count: Callable[[str], None] = count_nothing,
    ) -> None:
        self._work = work
        self._workers = workers
        self._sleep = sleep
        self._guard = LoopGuard("writes", count)
        self._queue: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._backoffs: dict[K, Backoff] = {}

    def add(self, key: K) -> None:
        """A key that is being worked on is worked on once more afterwards."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._workers):
                tasks.create_task(self._serve(tasks))

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            self._busy.add(key)
            try:
                await self._work(key)
            except ClusterError as error:
                log.warning("%s: %s; trying again", key, error)
                self._try_again(tasks, key)
            except Exception as error:
                if not self._guard.contains(str(key), error):
                    raise
                self._try_again(tasks, key)
            else:
                self._backoffs.pop(key, None)
            finally:
                self._busy.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    def _try_again(self, tasks: asyncio.TaskGroup, key: K) -> None:
        seconds = self._backoffs.setdefault(key, Backoff()).next()
        tasks.create_task(self._add_later(key, seconds))

    async def _add_later(self, key: K, seconds: float) -> None:
        await self._sleep(seconds)
        self.add(key)
