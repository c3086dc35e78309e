"""Supervises the main loop from the side thread: /healthz reports a stalled loop, a stalled leader
exits.

Run by the controller in a `SideThread`. In: the `Heartbeat`, and the elector, which lives in the
same thread. While a decision stalls the loop, the lease is still renewed, and the following happens
in order:

- after a quarter of the stall limit the pod that causes the work (`Heartbeat.blamed`) is recorded
  on the Lease (`stalled`), because the process may not survive the decision: it may be killed, or
  run out of memory. The record is removed when the decision ends.
- after the stall limit the process releases its lease, with the record, logs the main thread's
  stack, and exits. The next leader postpones the pod and decides the others.

A loop that is stalled by anything else gets three times as long, and holds no pod
back; the log names the object that a handler has. Time in which
this thread did not run either (the process was stopped, the machine suspended, no CPU available)
does not count. A call into C that keeps the interpreter's lock stops this thread, too: then the
lease expires, and kubelet gets no answer from /healthz.
"""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final

from controller.reconcile.runtime.heartbeat import Deciding, Heartbeat
from controller.reconcile.runtime.stalled import noted, taken_back
from controller.settings.controller import LeadershipSettings
from hami_dra.api import names
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.lease import LeaderElector

log = logging.getLogger(__name__)

EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h."""
_TICK: Final = 0.5
_STEP_MOST: Final = 1.0
"""Most that one tick counts: during a longer one this thread itself did not run."""
_NOTE_SHARE: Final = 0.25
_LOG_SECONDS: Final = 2.0


class StallClock:
    """Seconds for which a value has been unchanged, excluding time in which the observer did not run."""

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._at = now
        self._seen: object = None

    def observe(self, value: object, now: float) -> float:
        step, self._at = min(now - self._at, _STEP_MOST), now
        self.seconds = self.seconds + step if value == self._seen else 0.0
        self._seen = value
        return self.seconds


@dataclass(eq=False)
class Watchdog:
    """`elector` None: no election, it affects /healthz only. `end` ends the process immediately."""

    heartbeat: Heartbeat
    settings: LeadershipSettings
    elector: LeaderElector | None
    _: KW_ONLY
    wall: Callable[[], datetime]
    clock: Callable[[], float] = boot_clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    end: Callable[[int], None]
    _beat: StallClock = field(init=False)
    _decision: StallClock = field(init=False)
    _noted: Deciding | None = None

    def __post_init__(self) -> None:
        self._beat = StallClock(self.clock())
        self._decision = StallClock(self.clock())

    def unhealthy(self) -> tuple[str, ...]:
        """Return the problem of the main loop for /healthz; empty if it runs."""
        stalled = self._beat.seconds
        if stalled < self.settings.unhealthy_after:
            return ()
        return (f"the main loop has not run for {stalled:.0f} s, {self.heartbeat.doing}",)

    async def run(self) -> None:
        """Run until cancelled, or the process ends."""
        guard = LoopGuard("watchdog")
        while True:
            await self.sleep(_TICK)
            with guard.each("the main loop"):
                await self._check()

    async def _check(self) -> None:
        now, deciding = self.clock(), self.heartbeat.blamed
        stalled = self._beat.observe(self.heartbeat.beats, now)
        in_decision = min(self._decision.observe(deciding and deciding.serial, now), stalled) if deciding else 0.0
        if self._noted is not None and self._noted != deciding:
            self._take_back(self._noted)
        if self.elector is None or not self.heartbeat.in_term:
            return
        limit = self.settings.stall_limit
        if deciding is not None and in_decision >= _NOTE_SHARE * limit and self._noted is None:
            self._note(deciding)
        if in_decision >= limit or stalled >= self.settings.loop_limit:
            await self._give_up(self.elector, deciding if in_decision >= limit else None, stalled)

    def _note(self, deciding: Deciding) -> None:
        assert self.elector is not None
        self._noted = deciding
        at, by = self.wall(), self.elector.identity
        self.elector.edit_annotation(names.STALLED_DECISIONS, lambda text: noted(text, deciding.pod, at=at, by=by))

    def _take_back(self, deciding: Deciding) -> None:
        assert self.elector is not None
        self._noted = None
        by = self.elector.identity
        self.elector.edit_annotation(names.STALLED_DECISIONS, lambda text: taken_back(text, deciding.pod, by))

    async def _give_up(self, elector: LeaderElector, deciding: Deciding | None, stalled: float) -> None:
        """Release the lease first, then log: a log that is not read may block its writer."""
        if deciding is None and self._noted is not None:
            self._take_back(self._noted)
        about = self.heartbeat.doing
        await elector.resign()
        message = "the main loop was held up for %.0f s, %s: gave the lease back, ending this process. Its stack:\n%s"
        telling = threading.Thread(
            target=log.critical,
            args=(message, stalled, about, _stack(self.heartbeat.thread)),
            name="last words",
            daemon=True,
        )
        telling.start()
        await asyncio.to_thread(telling.join, _LOG_SECONDS)
        self.end(EXIT_CODE)


def _stack(thread: int | None) -> str:
    frame = sys._current_frames().get(thread) if thread is not None else None  # noqa: SLF001 (the documented way)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
