"""Injected time: all of `reconcile` uses a `Clock`, so that tests run hours of it in no time.

`monotonic` is for waiting and comparing; `wall` only for timestamps in objects. The two are never
mixed.
"""

import asyncio
import time
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
