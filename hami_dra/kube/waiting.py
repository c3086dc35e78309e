"""Waiting for an event or a time, whichever comes first (loops that can be woken), or for a call that may block."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from hami_dra.api.background import in_background

_T = TypeVar("_T")


def call_within(seconds: float, call: Callable[[], _T]) -> _T:
    """Return what the call returns, or raise what it raises; TimeoutError: it goes on, and delays no end of the process."""
    return in_background(call).result(timeout=seconds)


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run the coroutines within the block, and cancel them at its end. Raises what one of them raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, but at most `seconds` of the running loop (may be infinite)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0) if seconds < math.inf else None):
            await event.wait()
