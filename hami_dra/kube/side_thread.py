"""An event loop in a separate thread, for lease renewal and /healthz while the main loop is busy.

    with SideThread("lease and health") as side:
        await side.run(cluster.close)

The two loops share nothing but what is handed over here and plain values (numbers, strings, frozen
objects) that one side sets and the other reads: in CPython both are atomic. Objects that belong to
a loop (a Cluster, an asyncio.Event) are created and used in that loop only.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
Start = Callable[[], Coroutine[Any, Any, T]]


async def run_in(loop: asyncio.AbstractEventLoop, start: Start[T]) -> T:
    """Run a coroutine in another thread's loop, and wait until it has ended there.

    Returns what it returns and raises what it raises. A cancellation is passed on, and even then
    this ends only when the coroutine has, so that the caller knows that no part of it still runs.
    (`asyncio.run_coroutine_threadsafe` does not wait.) `loop` may be the running one.
    """
    here = asyncio.get_running_loop()
    ended: asyncio.Future[asyncio.Task[T]] = here.create_future()
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        task = loop.create_task(start())
        tasks.append(task)
        task.add_done_callback(lambda done: here.call_soon_threadsafe(ended.set_result, done))

    def cancel() -> None:
        tasks[0].cancel()

    loop.call_soon_threadsafe(begin)
    is_cancelled = False
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            is_cancelled = True
            loop.call_soon_threadsafe(cancel)
    task = ended.result()
    if is_cancelled and not (task.cancelled() or task.exception() is not None):
        raise asyncio.CancelledError
    return task.result()


class SideThread:
    """A thread that runs from `with` to the end of the block. Everything started in it must have ended."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._until_stopped()), name=name, daemon=True)
        self._running = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def __enter__(self) -> Self:
        self._thread.start()
        self._running.wait()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _until_stopped(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._stop.wait()

    async def run(self, start: Start[T]) -> T:
        return await run_in(self._loop, start)

    @asynccontextmanager
    async def entered(self, manager: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        """Enter a context manager in the thread, yield its value, and leave it there. Raises what entering raises."""
        here = asyncio.get_running_loop()
        value: asyncio.Future[T] = here.create_future()

        async def hold() -> None:
            async with manager() as made:
                here.call_soon_threadsafe(value.set_result, made)
                await asyncio.Event().wait()

        task = asyncio.create_task(self.run(hold))
        try:
            either: tuple[asyncio.Future[Any], ...] = (task, value)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not value.done():
                await task
            yield value.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
