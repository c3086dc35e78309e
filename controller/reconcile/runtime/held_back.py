"""Pods that wait because they stalled a leader: until when, and when that is forgotten.

Created by the controller for each term; called by the scheduling cycle before each decision. In:
the annotation of the Lease (`stalled`), written by former leaders, as of each renewal. An entry is
forgotten when its pod was deleted or decided (of a gang: when no member is left), and when an operator removes the annotation. Decides
nothing itself.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from controller.gangs import GangKey, Gangs
from controller.inventory import Blamed
from controller.reconcile.runtime.clock import Clock
from controller.reconcile.runtime.heartbeat import Heartbeat
from controller.reconcile.runtime.metrics import Metrics
from controller.reconcile.runtime.stalled import (
    FIRST_HOLD,
    PodRef,
    StalledDecision,
    forgotten,
    namespace_end,
    read,
    seconds_left,
)
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.kube.lease import Election

if TYPE_CHECKING:
    from controller.gangs import Source

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_CAUSES: Final = "deciding on it, or reading its affinity terms for other pods, took too long"


class Hold(Struct, frozen=True):
    why: str
    until: float


@dataclass(eq=False)
class HeldBack:
    """The postponed pods. Seconds are of the monotonic clock. `pod`: returns the present pod of a key."""

    election: Election
    heartbeat: Heartbeat
    clock: Clock
    metrics: Metrics
    _: KW_ONLY
    pod: Callable[[str], Pod | None]
    gangs: Gangs
    _text: str = ""
    _ends: dict[StalledDecision, float] = field(default_factory=dict)
    _ends_by_pod: dict[str, float] = field(default_factory=dict)
    """By uid."""
    _ends_by_namespace: dict[str, float] = field(default_factory=dict)
    """Of those held back as a whole."""
    _freed: set[str] = field(default_factory=set)
    """Namespaces of entries removed since the last check of `run`."""

    def __post_init__(self) -> None:
        self.heartbeat.term_reading.blamed = self._blamed

    # --- for the scheduling cycle -----------------------------------------------------------------

    def hold(self, pod: Pod, now: float, gang: GangKey | None = None) -> Hold | None:
        """Return why the pod must not be decided now, and until when; None if it may be decided.

        `gang`: the one for which it stands. A gang is held back as a whole, whichever of its pods
        was named.
        """
        self._read()
        if not self._ends:
            return None
        held = {
            entry: end for entry, end in self._ends.items() if entry.namespace == pod.metadata.namespace and now < end
        }
        about = PodRef.of(pod, gang)
        own = next((entry for entry in held if entry.is_about(about)), None)
        if own is not None:
            times = "once" if own.count == 1 else f"{own.count} times in a row"
            what = f"{gang}" if own.gang and gang is not None else "this pod"
            why = (
                f"{what} held up the controller until it gave up ({times}): {_CAUSES}; it is tried again at "
                f"{self._moment(held[own], now)}. Simplify its affinity and the selectors and constraints of its claims, and create it again"
            )
            return Hold(why, held[own])
        if (end := namespace_end(held.values())) is None:
            return None
        why = (
            f"{len(held)} pods of this namespace held up the controller until it gave up "
            f"({', '.join(sorted(entry.name for entry in held))}): {_CAUSES}. All its pods wait until {self._moment(end, now)}. "
            "Delete these pods, or create them again with simpler claims"
        )
        return Hold(why, end)

    def _blamed(self) -> Blamed:
        """Return the pods whose affinity terms are not to be read for others now."""
        now = self.clock.monotonic() if self._ends else 0.0
        ends = (self._ends_by_pod, self._ends_by_namespace)
        return Blamed(*[frozenset([key for key, end in each.items() if now < end]) for each in ends])

    def decided(self, pod: Pod, gang: GangKey | None = None) -> None:
        """Forget the pod, or the gang for which it stands: a decision on it ended in time."""
        if self._ends:
            about = PodRef.of(pod, gang)
            self._forget([entry for entry in self._ends if entry.is_about(about)])

    # --- keeping up -------------------------------------------------------------------------------

    async def run(self, evaluate: Callable[[str], None]) -> None:
        """Run until cancelled. Calls `evaluate` with a namespace whose pods may no longer be postponed."""
        while True:
            await self.clock.sleep(_LOOK_SECONDS)
            self._read()
            self._forget([entry for entry in self._ends if not self._is_there(entry)])
            now = self.clock.monotonic()
            self.metrics.held_back_pods.set(sum(now < end for end in self._ends.values()))
            for namespace in sorted(self._freed):
                evaluate(namespace)
            self._freed.clear()

    def _is_there(self, entry: StalledDecision) -> bool:
        pod = self.pod(entry.key)
        source, _, name = entry.gang.partition("/")
        is_there = pod is not None and pod.metadata.uid == entry.uid
        if is_there and pod is not None and pod.spec.node_name:
            # Named for its terms; nobody decides on it: a while after the hold they were read in time.
            return self.clock.monotonic() < self._ends[entry] + FIRST_HOLD
        return is_there or self.gangs.has_members(GangKey(cast("Source", source), entry.namespace, name))

    def _read(self) -> None:
        text = self.election.annotations.get(names.STALLED_DECISIONS, "")
        if text == self._text:
            return
        self._text = text
        wall, now = self.clock.wall(), self.clock.monotonic()
        # Entries of this process are about a decision that is still in progress.
        entries = [entry for entry in read(text) if entry.by != self.election.identity]
        for entry in entries:
            if entry not in self._ends:
                log.warning("pod %s is held back: it held up %s (%d)", entry.key, entry.by, entry.count)
        self._replace({entry: self._ends.get(entry, now + seconds_left(entry, wall)) for entry in entries})

    def _forget(self, entries: Collection[StalledDecision]) -> None:
        if entries:
            self.election.edit_annotation(names.STALLED_DECISIONS, lambda text: forgotten(text, entries))
            self._replace({entry: end for entry, end in self._ends.items() if entry not in entries})

    def _replace(self, ends: dict[StalledDecision, float]) -> None:
        self._freed.update(entry.namespace for entry in self._ends if entry not in ends)
        self._ends = ends
        self._ends_by_pod = {entry.uid: end for entry, end in ends.items()}
        by_namespace: dict[str, list[float]] = {}
        for entry, end in ends.items():
            by_namespace.setdefault(entry.namespace, []).append(end)
        whole = {namespace: namespace_end(several) for namespace, several in by_namespace.items()}
        self._ends_by_namespace = {namespace: end for namespace, end in whole.items() if end is not None}

    def _moment(self, end: float, now: float) -> str:
        moment: datetime = self.clock.wall() + timedelta(seconds=end - now)
        return moment.astimezone(UTC).strftime("%H:%M:%S UTC")
