"""Time, injected: everything in `reconcile` asks a `Clock`, so that tests run hours of it in no time.

`monotonic` is for waiting and for comparing; `wall` is only for what is written into objects. The two are never mixed.
"""

import asyncio
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds; only differences mean anything."""

    def wall(self) -> datetime:
        """Now, in UTC."""

    def cpu(self) -> float:
        """CPU seconds of this thread: what work costs, however busy the machine is."""

    async def sleep(self, seconds: float) -> None: ...


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set or `seconds` of the running loop are over; infinite: when it is set."""
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
