"""Places that are reserved for units which have waited for long: the node or domain that is free soonest.

A reservation is a hold without victims: its devices are assumed on top of the pods that have them, so
that what they leave goes to nobody else. Other devices of its nodes are not touched. Its unit waits as
any unit without room, without a gate, and may find a place elsewhere.

| pod | goes there |
|---|---|
| of higher priority | always: the reservation is given up if it is in the way |
| whose `activeDeadlineSeconds` ends before the place is free | meanwhile (EASY backfill) |
| any other | no |
"""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from controller.cluster.incremental import LruCache
from controller.gangs import UnitDecision
from controller.preemption import Preemption, soonest
from controller.reconcile.preemption.holds import Hold, Holds, Slot
from controller.reconcile.preemption.notes import place_reserved
from controller.reconcile.preemption.waits import Waits
from controller.reconcile.queueing import QueuedUnit
from controller.reconcile.runtime import Context

_MOST: Final = 3_600.0
"""Seconds for which a place is reserved at most, unless its pods say that they end later."""
_SLACK: Final = 60.0
"""Seconds after the last stated end for which it is kept."""
_START: Final = 30.0
"""Seconds that may pass before a pod starts, from when its deadline counts."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
"""Seconds for which no place is looked for after none was found, as long as it has been so: at first a pod
may hold devices that the API server does not know of yet."""
_NONE_KEPT: Final = 1_000


class Reservations:
    """`give_up`: ends a hold, and says why."""

    def __init__(self, context: Context, holds: Holds, *, give_up: Callable[[Hold, str], None]) -> None:
        self._context = context
        self._holds = holds
        self._give_up = give_up
        self._none: LruCache[float] = LruCache(_NONE_KEPT)
        """Signature → until when no place is looked for."""

    def reserve(
        self, unit: QueuedUnit, digest: bytes, preemption: Preemption, priority: int, since: float
    ) -> Waits | None:
        """Reserve a place for a unit that waits `since` then, if that is long enough. None: none can be. Raises SliceSpent."""
        after = self._context.settings.save_after
        if not after:
            return None
        now = self._context.clock.monotonic()
        if now < (at := since + after):
            return Waits(at, "it has not waited long enough for a place of its own", keeps_gate=False)
        slot = _slot(unit)
        others = [hold for hold in self._holds if hold.slot == slot]
        if any(hold.priority >= priority for hold in others):
            return None
        if now < (until := self._none.find(digest) or 0.0):
            return _no_place(until, now - at)
        with self._context.inventory.trial() as trial:
            for hold in others:
                hold.lift(trial)
            vacancy = soonest(preemption, unit.unit)
        if vacancy is None:
            pause = min(max(now - at, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._none.put(digest, now + pause)
            return _no_place(now + pause, now - at)
        for hold in others:
            self._give_up(hold, "a unit of higher priority has it reserved")
        ends = vacancy.ends if vacancy.ends < math.inf else None
        hold = Hold(
            unit.key,
            vacancy.placed,
            (),
            vacancy.leaving,
            frozenset([*preemption.tenants.freed_by(vacancy.leaving), *preemption.left_claims]),
            priority,
            now,
            until=now + max(_MOST, 0.0 if ends is None else ends - preemption.rules.now + _SLACK),
            slot=slot,
            ends=ends,
        )
        self._holds.begin(hold)
        self._context.metrics.preemptions.labels("reserved").inc()
        kept_until = self._context.clock.wall() + timedelta(seconds=hold.until - now)
        return replace(self.waits(hold), said=place_reserved(unit.pod, hold.nodes, vacancy.leaving, ends, kept_until))

    def lost(self, digest: bytes) -> None:
        """Let no place be looked for at once after one was given up: it might be the same, again and again."""
        self._none.put(digest, self._context.clock.monotonic() + _FIRST_PAUSE)

    def waits(self, hold: Hold) -> Waits:
        return Waits(
            hold.until, f"its place on {', '.join(hold.nodes)} is reserved, and not free yet", keeps_gate=False
        )

    def meanwhile(self, unit: QueuedUnit, preemption: Preemption) -> UnitDecision | None:
        """Return where a refused unit fits on reserved devices, if all of its pods end before these are free."""
        deadlines = [request.pod.spec.active_deadline_seconds for request in unit.ready]
        known = [each for each in deadlines if each is not None]
        if len(known) < len(deadlines):
            return None
        ends = preemption.rules.now + max(known) + _START
        reserved = [hold for hold in self._holds if hold.ends is not None and ends <= hold.ends]
        if not reserved:
            return None
        with self._context.inventory.trial() as trial:
            for hold in reserved:
                hold.lift(trial)
            answer = preemption.without(unit.unit)
        if answer is not None:
            nodes = {decision.node for _, decision in answer.placed}
            for hold in reserved:
                if not nodes.isdisjoint(hold.nodes):
                    self._holds.welcome(hold, answer.placed)
        return answer


def _no_place(until: float, for_seconds: float) -> Waits:
    return Waits(review=until if for_seconds < _LONGEST_PAUSE else math.inf, keeps_gate=False)


def _slot(unit: QueuedUnit) -> Slot:
    """Return the classes that the unit asks for, and the size of its place: of each one place is reserved at a time."""
    classes = {
        each.device_class_name
        for request in unit.ready
        for entry in request.claims
        for asked in entry.claim.spec.devices.requests
        for each in asked.choices
    }
    keys = [each.key for each in unit.unit.topology if each.required]
    return tuple(sorted(classes)), "" if unit.gang is None else ",".join(keys) or "gang"
