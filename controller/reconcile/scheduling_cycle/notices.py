"""What is said of units: the events of their pods, and their entries in the decision log.

Of a gang, one member, the one that the gang waits for or that stands for it, has the whole sentence,
updated with every evaluation. Every other waiting member has a short one, because users describe any
of them: once for each reason, and again before the API server drops the event. These are sent a few
a second for all gangs together, so that a gang of 1,000 delays nobody's events; by then most gangs
run, and nothing is to be said.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from controller.assessment import Undecided
from controller.decide import Decision, SchedulingRequest, Unschedulable
from controller.gangs import GangKey, UnitDecision, UnitRefusal
from controller.insight.explain import explained_gang
from controller.reconcile.observability import decision_logging
from controller.reconcile.queueing import GangQueue, Pending, QueuedUnit
from controller.reconcile.runtime import Context, messages
from controller.reconcile.scheduling_cycle.collaborators import Deciding
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import is_pending, other_gates
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

ARRIVAL: Final = 3.0
"""Seconds before the other members have an event, or an event says that a gang is incomplete: more members
may still be created.
"""
NOTED: Final = 8
"""Number of members for which the reason why the gang is incomplete is stored; it changes with every new member."""
_ROUND: Final = 1.0
_A_ROUND: Final = 8
"""Events in a round of `_ROUND` seconds."""
_AGAIN: Final = 1_800.0
"""Seconds until the next event of a member: API servers keep an event for an hour."""


class _Notice(Struct):
    """Why a gang waits."""

    message: messages.Message
    whole_to: str
    """Key of the member that has the whole sentence."""
    begins: float
    """When the first of the others has its event."""
    due: float
    """When to look for members without an event."""
    reported: dict[str, tuple[str, float]] = msgspec.field(default_factory=dict)
    """UID of a member → reason and time of its event."""


@dataclass(eq=False)
class Notices:
    context: Context
    deciding: Deciding
    queue: GangQueue
    _guard: LoopGuard = field(init=False)
    _notices: OrderedDict[GangKey, _Notice] = field(default_factory=OrderedDict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._guard = self.context.guard("gangs")

    # --- of a unit --------------------------------------------------------------------------------

    def waits(self, pod: Pod, wait: Pending) -> None:
        log.debug("pod %s waits: %s", pod.key, wait.why)
        if wait.event is not None:
            self.context.events.report(POD, pod, wait.event)
        self.note((pod,), wait.why, passing=wait.passing)

    def blocked(self, unit: QueuedUnit, first: Undecided[Pending], now: float) -> str:
        """Tell why the unit cannot be decided now. Returns the reason."""
        member, wait = first.pod, first.why
        if unit.gang is None:
            self.waits(member, wait)
            return wait.why
        why = f"pod {member.key}: {wait.why}"
        self.note((unit.pod, member), why, passing=wait.passing)
        if not other_gates(member):  # its owner says why
            message = messages.gang_blocked(unit.gang, member, wait.why)
            event = replace(wait.event, brief=message.brief) if wait.event is not None else None
            self.tell(unit.gang.key, member if event is not None else None, event or message, now)
        return why

    def refused(self, unit: QueuedUnit, refusal: UnitRefusal, now: float) -> None:
        """Tell why the unit found no room."""
        overrun = refusal.refusal.overrun
        if unit.gang is not None:
            self.tell(unit.gang.key, unit.pod, messages.gang_refused(unit.gang, refusal), now)
        elif overrun is not None:
            self.context.events.report(POD, unit.pod, messages.over_budget(refusal.refusal, overrun.until - now))
        else:
            self.context.events.report(POD, unit.pod, messages.refused(unit.pod, refusal.refusal))

    def placed(self, unit: QueuedUnit, answer: UnitDecision) -> None:
        if unit.gang is None:
            decision_logging.placed(unit.pod, answer.placed[0][1])
            return
        where = f" in {answer.domain}" if answer.domain else ""
        log.info("%s: %d members placed%s", unit.gang.key, len(answer.placed), where)

    def not_yet(self, unit: QueuedUnit, why: str) -> None:
        """Store that the decision is not carried out for now."""
        if unit.gang is not None:
            self.note(unit.pods, why)
            return
        claims = (entry.claim.key for entry in unit.ready[0].claims)
        self.deciding.log.waiting(unit.pod, why, claims, passing=True, at=self.context.clock.wall(), replacing=True)

    def decided(self, unit: QueuedUnit, answer: UnitDecision | UnitRefusal, *, again: bool = False) -> None:
        """Store the decision on each pod for explanations, and log that on a pod alone. Call it before
        the inventory changes. `again`: it is that on an equal pod.
        """
        at, now = self.context.clock.wall(), self.context.clock.monotonic()
        decided: list[tuple[SchedulingRequest, Decision | Unschedulable]]
        if isinstance(answer, UnitDecision):
            decided = [*answer.placed, *answer.left]
        else:
            named = [request for request in unit.ready if unit.gang is None or request.pod.key == answer.member]
            decided = [(request, answer.refusal) for request in named]
        for request, each in decided:
            self.deciding.log.record(self.context.inventory, request, self.deciding.options, each, at=at, now=now)
        if unit.gang is not None:
            if isinstance(answer, UnitRefusal):
                for request in unit.ready:
                    if request.pod.key != answer.member:
                        self.deciding.log.waiting(request.pod, answer.message, passing=True, at=at, replacing=True)
            self.deciding.log.together(explained_gang(unit.gang, answer), (request.pod for request in unit.ready))
        elif not again:
            ((request, each),) = decided
            decision_logging.details(self.context.inventory, request, self.deciding.options, each)
            if isinstance(each, Unschedulable):
                decision_logging.refused(unit.pod, each)

    def note(self, pods: Iterable[Pod], why: str, *, passing: bool = True) -> None:
        """Store for explanations why the pods wait."""
        at = self.context.clock.wall()
        for pod in pods:
            self.deciding.log.waiting(pod, why, passing=passing, at=at)

    # --- events of gangs --------------------------------------------------------------------------

    def tell(self, key: GangKey, pod: Pod | None, message: messages.Message, now: float) -> None:
        """Tell the pod, if any, why its gang waits, and the other members soon."""
        if pod is not None:
            self.context.events.report(POD, pod, message)
        whole_to = pod.key if pod is not None else ""
        notice = self._notices.get(key)
        if notice is None:
            self._notices[key] = _Notice(message, whole_to, now + ARRIVAL, now + ARRIVAL)
        else:
            notice.message, notice.whole_to = message, whole_to
            notice.due = min(notice.due, max(now + _ROUND, notice.begins))
        self._wake.set()

    async def run(self) -> None:
        """Tell the members, until cancelled."""
        while True:
            now = self.context.clock.monotonic()
            due = min((notice.due for notice in self._notices.values()), default=math.inf)
            if due <= now:
                self._tell_some(now)
                await self.context.clock.sleep(_ROUND)
            else:
                await wait_at_most(self._wake, due - now)
                self._wake.clear()

    def _tell_some(self, now: float) -> None:
        left = _A_ROUND
        for key in [key for key, notice in self._notices.items() if notice.due <= now]:
            with self._guard.each(str(key)):
                left -= self._tell_some_of(key, now, left)
            if not left:
                self._notices.move_to_end(key)
                return

    def _tell_some_of(self, key: GangKey, now: float, most: int) -> int:
        """Return how many events are sent."""
        if not self.queue.is_waiting(key):
            del self._notices[key]
            return 0
        notice = self._notices[key]
        notice.due = now + _AGAIN
        unreported = self._unreported(key, notice, now)
        brief = replace(notice.message, note=notice.message.brief, topic="gang")
        for pod in unreported[:most]:
            self.context.events.report(POD, pod, brief)
            notice.reported[pod.metadata.uid] = (brief.reason, now)
        if len(unreported) > most:
            notice.due = now
        return min(len(unreported), most)

    def _unreported(self, key: GangKey, notice: _Notice, now: float) -> list[Pod]:
        of_all = notice.message.reason == messages.INVALID_GANG  # also of those that go to another scheduler
        waiting = [
            pod
            for pod in self.context.informers.gangs.members(key)
            if self.queue.of(pod) == key or (of_all and is_pending(pod))
        ]
        before = notice.reported
        notice.reported = {uid: before[uid] for uid in (pod.metadata.uid for pod in waiting) if uid in before}
        unreported = []
        for pod in waiting:
            reason, at = notice.reported.get(pod.metadata.uid, ("", now))
            if pod.key != notice.whole_to and (reason != notice.message.reason or at <= now - _AGAIN):
                unreported.append(pod)
        return unreported
