"""Work by key: each key is processed once at a time, never forgotten, and retried with growing pauses.

Used by the publisher, the fleet and the writer of claim status. In: keys, whenever there may be
work. Out: calls of `work(key)`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from hami_dra.kube.backoff import Backoff
from hami_dra.kube.guard import LoopGuard, count_nothing
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import ClusterError

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """A queue of keys; `run()` until cancelled. An error of `work` causes a retry later.

    `lane`: the lane of a key; at most `width` keys of one lane are processed at a time. By default
    each key has its own. `count`: `count` of a `LoopGuard`.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int = 8,
        lane: Callable[[K], Hashable] = lambda key: key,
        width: int = 1,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        count: Callable[[str], None] = count_nothing,
    ) -> None:
        self._work = work
        self._lane = lane
        self._sleep = sleep
        self._guard = LoopGuard("writes", count)
        self._lanes = Lanes(width, workers)
        self._tasks: asyncio.TaskGroup
        self._backoffs: dict[K, Backoff] = {}

    def add(self, key: K) -> None:
        """Add a key. One that is being processed is processed once more afterwards."""
        self._lanes.add(self._lane(key), key, partial(self._serve, key))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._tasks, self._lanes:
            await asyncio.Event().wait()

    async def _serve(self, key: K) -> None:
        try:
            await self._work(key)
        except ClusterError as error:
            log.warning("%s: %s; trying again", key, error)
            self._try_again(key)
        except Exception as error:
            if not self._guard.contains(str(key), error):
                raise
            self._try_again(key)
        else:
            self._backoffs.pop(key, None)

    def _try_again(self, key: K) -> None:
        self._tasks.create_task(self._add_later(key, self._backoffs.setdefault(key, Backoff()).next()))

    async def _add_later(self, key: K, seconds: float) -> None:
        await self._sleep(seconds)
        self.add(key)
