"""The main loop's state for the side thread: plain values that it sets and `watchdog` reads.

Each value is replaced as a whole, never changed in place, so that another thread reads the old or
the new one.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.cluster.pods.gang_key import GangKey
from controller.inventory import TermReading
from controller.reconcile.runtime.stalled import PodRef
from hami_dra.api.core import Pod

BEAT_SECONDS: Final = 0.5
_LATE_SECONDS: Final = 1.0
"""Delay of a beat from which it counts as a stall."""


class Deciding(Struct, frozen=True):
    """One decision in progress. `serial` distinguishes two about the same pod."""

    pod: PodRef
    serial: int


class Heartbeat:
    def __init__(self) -> None:
        self.beats = 0
        """Grows while the loop runs."""
        self.deciding: Deciding | None = None
        self.unready: tuple[str, ...] = ("the controller is starting",)
        """Why the controller was not ready at the last beat."""
        self.in_term = False
        """Whether a term of leadership is running here; leadership may have been lost meanwhile."""
        self.thread = threading.main_thread().ident
        """The thread in which the loop runs."""
        self.term_reading = TermReading()
        """The inventory's."""
        self.handling: Callable[[], str] = lambda: ""
        """Return the kind and key of the object that an informer's listeners handle; empty: none."""
        self._serial = 0

    @property
    def blamed(self) -> Deciding | None:
        """The decision in progress, with the pod whose terms are read at the moment."""
        deciding, pod = self.deciding, self.term_reading.pod
        return deciding if deciding is None or pod is None else replace(deciding, pod=PodRef.of(pod, None))

    @property
    def doing(self) -> str:
        """What the loop does, for people."""
        if (deciding := self.deciding) is None:
            return f"handling {handled}" if (handled := self.handling()) else "in no decision"
        blamed = self.blamed or deciding
        terms = f", reading the affinity terms of pod {blamed.pod.key} ({blamed.pod.uid})"
        about = f"deciding on pod {deciding.pod.key} ({deciding.pod.uid})"
        return about if blamed == deciding else about + terms

    @contextmanager
    def deciding_on(self, pod: Pod, gang: GangKey | None = None) -> Iterator[None]:
        """Mark the time of a decision. `gang`: the one for which the pod stands."""
        self._serial += 1
        self.deciding = Deciding(PodRef.of(pod, gang), self._serial)
        try:
            yield
        finally:
            self.deciding = None

    async def run(self, unready: Callable[[], Iterable[str]], stalled: Callable[[float], None]) -> None:
        """Beat until cancelled. `stalled` gets the seconds of each stall of the loop."""
        loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        while True:
            self.beats += 1
            self.unready = tuple(unready())
            due = loop.time() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            if (late := loop.time() - due) >= _LATE_SECONDS:
                stalled(late)
