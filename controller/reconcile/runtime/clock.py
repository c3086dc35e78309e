"""Injected time: all of `reconcile` uses a `Clock`, so that tests run hours of it in no time.

`monotonic` is for waiting and comparing; `wall` only for timestamps in objects. The two are never
mixed.
"""

import asyncio
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds; only differences are meaningful."""

    def wall(self) -> datetime:
        """Return the present time in UTC."""

    def cpu(self) -> float:
        """Return CPU seconds of this thread: the cost of work, however busy the machine is."""

    async def sleep(self, seconds: float) -> None: ...


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, but at most `seconds` of the running loop (may be infinite)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0) if seconds < math.inf else None):
            await event.wait()


class LoopClock:
    """The time of the running event loop, and the machine's wall clock."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        return datetime.now(UTC)

    def cpu(self) -> float:
        return time.thread_time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
