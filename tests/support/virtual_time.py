"""An event loop whose clock jumps: `run` plays hours of waiting in no time, the same way every time."""

import asyncio
import math
import random
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)


class Deadlock(AssertionError):
    """Nothing is left that could ever happen: the test waits for what nobody will do."""


class _Jumping(selectors.SelectSelector):
    """Instead of blocking until the next timer it moves the clock there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("nobody has anything to do and no timer runs")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    @property
    def _clock_resolution(self) -> float:
        """A timer never ends before its time: a real clock has moved on then, and this one has not."""
        return math.nextafter(self._jumping.now, math.inf) - self._jumping.now

    @_clock_resolution.setter
    def _clock_resolution(self, seconds: float) -> None: ...


class VirtualClock:
    """`controller.reconcile.runtime.clock.Clock` on the running virtual loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.monotonic())

    def cpu(self) -> float:
        """Work costs nothing, so that a scenario goes the same way on every machine."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Chance, too, is the same every time: what spreads retries and elections draws from the module `random`."""
    before = random.getstate()
    random.seed(0)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(scenario)
    finally:
        random.setstate(before)
