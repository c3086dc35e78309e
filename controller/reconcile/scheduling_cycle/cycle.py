"""The scheduling cycle: decides one unit after the other in memory, assumes it, writes it in the
background. A unit is one pod, or the members of a gang that wait.

Created by `controller` for the time this process leads. `triggers` puts pods into the queue, `run`
takes them out; the oldest member that waits stands for its gang. Decisions are serial, so that each
sees all before it; commits run concurrently (`binding_cycle`), so that the API server's latency does
not delay the next decision. Nothing is decided while no fence is known to hold, and nothing is
committed for a driver whose fence is down; pods that need no decision are ungated nevertheless.

| station | one pod | a gang, besides |
|---|---|---|
| evaluate | it is there, and not held back | it is complete, and no member is being written (`gang_life`) |
| assess | its claims, volumes, policies | each member, until too many of them wait |
| wait | fence, last commit, slots | members that may still be created |
| decide | unless an equal one was refused | all members at once |
| place | commit | one commit of all (`binding.gang_commit`), checked before its end |
| refuse | event, gate patience, release | a rest after a long decision, `--gang-hold` |
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from controller.allocation import FIRST_ATTEMPT, Attempt, AttemptSpent
from controller.assessment import Foreign, Signature, assess_unit
from controller.cluster.incremental import LruCache
from controller.decide import Decision, EqualRefusals, SchedulingRequest, without_trace
from controller.gangs import GangKey, UnitDecision, UnitRefusal, decide_unit
from controller.inventory import SliceSpent
from controller.reasons import Change
from controller.reconcile.preemption import Waits
from controller.reconcile.queueing import (
    FOREVER,
    GangQueue,
    NamespaceWaits,
    News,
    Pending,
    QueuedUnit,
    Triggers,
    WaitingPods,
    content_of,
)
from controller.reconcile.runtime import Context, messages
from controller.reconcile.scheduling_cycle.collaborators import Acting, Deciding
from controller.reconcile.scheduling_cycle.gang_life import GangLife
from controller.reconcile.scheduling_cycle.notices import Notices
from controller.reconcile.scheduling_cycle.unplaced_units import DEVICES_OF_GANG, UnplacedUnits
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_leaving, node_made_free
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

_ROOM_INTERVAL: Final = 0.02
"""Seconds between two rounds over the groups of refused pods: a burst of events causes one round."""
_NOMINATION_INTERVAL: Final = 1.0
_STEPS_KEPT: Final = 1_024
"""Units whose next attempt is known: one that is forgotten begins with a short one again."""
_STEPS_PER_MEMBER: Final = 64
"""Of the longest attempt, so that a large gang of eight cards each can be placed."""
_STEPS_OF_RETRIES: Final = 80_000
"""More of them for a gang: what its 2,000 decisions about members are charged."""
_REST: Final = 19.0
"""A refused gang is not tried again before this many times the duration of its decision have
passed: big gangs that cannot run take at most a twentieth of the time.
"""


@dataclass(eq=False)
class SchedulingCycle:
    context: Context
    deciding: Deciding
    waiting: WaitingPods
    triggers: Triggers
    acting: Acting
    gangs: GangQueue = field(init=False)
    _notices: Notices = field(init=False)
    _gang_life: GangLife = field(init=False)
    _unplaced: UnplacedUnits = field(init=False)
    _guard: LoopGuard = field(init=False)
    _group: asyncio.TaskGroup = field(init=False)
    _steps: LruCache[int] = field(default_factory=lambda: LruCache(_STEPS_KEPT))
    """Unit → steps of its next attempt: twice as many as of the one before, up to a limit."""
    _equal: EqualRefusals = field(default_factory=EqualRefusals)
    _fence_changed: bool = False
    _room_not_before: float = float("-inf")

    def __post_init__(self) -> None:
        self.gangs = self.context.metrics.queue = GangQueue(self.context, self.waiting)
        self._notices = Notices(self.context, self.deciding, self.gangs)
        self._gang_life = GangLife(self.context, self.waiting, self.acting, self.gangs, self._notices)
        self._unplaced = UnplacedUnits(self.context, self.waiting, self.acting, self._notices, self._gang_life)
        self._guard = self.context.guard("decisions")

    async def run(self) -> None:
        """Run until cancelled, or `LeadershipLost` (in an exception group)."""
        async with asyncio.TaskGroup() as self._group:
            self._gang_life.group = self._unplaced.group = self._group
            self._group.create_task(self._notices.run(), name="notices of gangs")
            self.triggers.start()
            while True:
                await self.acting.binding_cycle.slots.wait()
                now = self.context.clock.monotonic()
                self._spread_news(now)
                key = self.waiting.queue.pop(now)
                if key is None:
                    await self._idle(now)
                    continue
                before = self.context.clock.cpu()
                self._evaluate_guarded(key, now)
                spent = self.context.clock.cpu() - before
                self.waiting.queue.charge(spent, self.deciding.selectors.caused_by_others())
                # After long work, leave the rest of the loop as much time as the work took.
                await self.context.clock.sleep(
                    spent if spent >= self.context.settings.scheduling.selectors.slice else 0
                )

    def fence_changed(self) -> None:
        """Wake pods that wait for a fence. Subscribed by the term."""
        self._fence_changed = True
        self.waiting.wake.set()

    # --- waiting ----------------------------------------------------------------------------------

    def _spread_news(self, now: float) -> None:
        if self._fence_changed:
            self._fence_changed = False
            for key in self.waiting.queue.keys_in("waiting"):
                with self._guard.each(key):
                    if (pod := self.context.informers.pod(key)) is not None:
                        self.triggers.evaluate(pod)
        # a refused pod must hear of room before a pod of lower priority takes it
        if self.triggers.news and (now >= self._room_not_before or self.waiting.queue.is_outranked(now)):
            self._room_not_before = now + _ROOM_INTERVAL
            self._unplaced.room_made(now, self.triggers.news)
            self.triggers.news = News()

    async def _idle(self, now: float) -> None:
        until = self.waiting.queue.next_timer()
        if self.triggers.news:
            until = min(until, self._room_not_before)
        await wait_at_most(self.waiting.wake, until - now)
        self.waiting.wake.clear()

    # --- one unit ---------------------------------------------------------------------------------

    def _evaluate_guarded(self, key: str, now: float) -> None:
        """Call `_evaluate`; an unexpected error postpones the pod, and ends nothing."""
        try:
            self._evaluate(key, now)
        except Exception as error:
            if not self._guard.contains(key, error):
                raise
            self.waiting.queue.wait(key, now + self.context.settings.binding.retry_most)

    def _evaluate(self, key: str, now: float) -> None:
        pod = self.context.informers.pod(key)
        if pod is None:
            self.waiting.queue.drop(key)
            return
        if not self.context.settings.scheduling.gate:
            self._unplaced.lift_gate(pod, "the gate is off")
        gang = self.gangs.of(pod)
        if gang is not None and not self.gangs.stands_for(pod, gang):
            return
        held_back = self.deciding.held_back
        if (hold := held_back.hold(pod, now, gang)) is not None:
            event = messages.decision_stalled(hold.why)
            self._unplaced.postpone(pod, Pending(hold.why, hold.until, passing=False, event=event))
            return
        before = time.perf_counter()
        budget = self.deciding.selectors.of(pod.metadata.namespace, partial(self._selectors_of, pod), now)
        try:
            with held_back.heartbeat.deciding_on(pod, gang), self.context.inventory.verdicts.within(budget):
                unit = self._assess(pod, gang, now)
                if unit is not None:
                    self._act(unit, now)
            budget.decided()
        except NamespaceWaits as wait:
            event = messages.namespace_over_budget(wait.note)
            self._unplaced.postpone(pod, Pending(wait.note, wait.until, event=event))
        except SliceSpent:
            log.debug("pod %s: goes on when it is its namespace's turn again", key)
            self.context.metrics.decision_seconds.labels("unfinished").observe(time.perf_counter() - before)
            self.waiting.queue.unfinished(key)
        except Exception:  # a failure on one pod must not stop the loop
            log.exception("pod %s: cannot be decided", key)
            self.context.metrics.decisions.labels("error").inc()
            self.context.events.report(POD, pod, messages.internal_error(messages.FILTERING_FAILED))
            self.waiting.queue.wait(key, now + self.context.settings.binding.retry_most)

    def _selectors_of(self, pod: Pod) -> bytes:
        claims = [self.context.informers.claim(key) for key in claim_keys(pod)]
        return content_of(claim for claim in claims if claim is not None)

    def _assess(self, pod: Pod, gang: GangKey | None, now: float) -> QueuedUnit | None:
        """Return the unit for which the pod stands, or None: its gang is not complete, and the
        queue knows for how long it waits. Raises SliceSpent: it is assessed again in its next turn.
        """
        assess = partial(self.deciding.assessor.assess, now=now)
        if gang is None:
            return assess_unit(pod, (pod,), None, assess)
        state = self._gang_life.complete(gang, pod, now)
        if state is None:
            return None
        waiting = self.gangs.remembered(gang)
        unit = assess_unit(pod, state.pending, state, assess, first=waiting.blocked_by, node_of=self._node_of)
        waiting.blocked_by = unit.blocked[0].pod.key if unit.blocked else ""
        return unit

    def _node_of(self, pod: Pod) -> str:
        return self.context.inventory.assumed_node(pod.metadata.uid) or pod.status.nominated_node_name

    def _act(self, unit: QueuedUnit, now: float) -> None:
        if unit.gang is not None and not unit.least:
            for each in unit.settled:
                self._unplaced.lift_gate(each.pod, DEVICES_OF_GANG)
        if unit.is_blocked:
            self._unplaced.keep_waiting(unit, now, self._start_over(unit, now))
        elif not unit.ready:
            if unit.gang is not None:
                self.gangs.forget(unit.gang.key)
            self._unplaced.let_go(unit, now)
        else:
            for request in unit.ready:
                if self.context.inventory.starts_over(request.pod):
                    self.triggers.made_room(Change.DEVICES_FREED)
            if not self._must_wait(unit, now):
                self._decide_on(unit, now)

    def _start_over(self, unit: QueuedUnit, now: float) -> float:
        """Free what pods of a blocked unit held of vanished claims, once we would know that they are
        bound. Returns when that is.
        """
        again = FOREVER
        for pod in unit.pods:
            uid = pod.metadata.uid
            if not self.context.inventory.vanished.is_held_by(uid):
                continue
            if now < (known := self.waiting.timeouts.runs_out(uid, "vanished", now)):
                again = min(again, known)
            elif self.context.inventory.starts_over(pod):
                self.triggers.made_room(Change.DEVICES_FREED)
        return again

    def _must_wait(self, unit: QueuedUnit, now: float) -> bool:
        """Return whether the unit must not be decided now; the queue then knows for how long."""
        namespace, cycle = unit.pod.metadata.namespace, self.acting.binding_cycle
        paused = max(cycle.paused_until(request.pod) for request in unit.ready)
        if unit.gang is not None and now < (complete := self._gang_life.arrived(unit.gang, now)):
            self._wait(unit, complete, "more members may be created", now, passing=True)
        elif self.acting.fence.is_down:
            self._wait(unit, FOREVER, "the fence is not in force", now, passing=True)
        elif now < paused:
            self._wait(unit, paused, "its last commit failed", now)
        elif not cycle.slots.may_start(namespace):
            cycle.slots.park(namespace, unit.pod.key)
            self.waiting.queue.wait(unit.pod.key)
        else:
            return False
        return True

    def _wait(self, unit: QueuedUnit, until: float, why: str, now: float, *, passing: bool = False) -> None:
        """Evaluate the unit again at a time, or at the end of what a gang's members hold meanwhile."""
        if unit.gang is not None:
            until = min(until, self._gang_life.end_of_hold(unit, unit.gang, why, now, passing=passing))
        self.waiting.queue.wait(unit.pod.key, until)

    # --- deciding ---------------------------------------------------------------------------------

    def _decide_on(self, unit: QueuedUnit, now: float) -> None:
        signature = unit.signature(self.context.inventory)
        if self.acting.preemptor is not None and (held := self.acting.preemptor.resume(unit)) is not None:
            if isinstance(held, Waits):
                self._unplaced.say(unit, held)
                self.waiting.queue.wait(unit.pod.key, held.until)
            else:
                self._notices.decided(unit, held)
                self._act_on(unit, signature, held, now)
            return
        if self.waiting.queue.is_known_full(signature.digest):
            if self._unplaced.is_uneven(signature):
                self._unplaced.wait_for_others(unit.pod.key, signature, refused_at=None)
                return
            if (known := self._unplaced.refusal_of(signature)) is not None:
                known = replace(known, member=unit.pod.key)
                self._notices.decided(unit, known, again=True)
                self._refuse(unit, signature, known, now, refused_at=None)
                return
        answer, spent = self._decide(unit)
        self._notices.decided(unit, answer)
        if isinstance(answer, UnitDecision):
            self._act_on(unit, signature, answer, now)
            return
        self.context.metrics.refused(answer.refusal.reasons, error=bool(answer.refusal.error))
        # the trace refers to columns, and is not to be kept
        answer = replace(answer, refusal=self._equal.of(without_trace(answer.refusal)))
        rest = 0.0
        if unit.gang is not None:
            self.context.metrics.gang_decisions.labels("refused").inc()
            rest = _REST * spent
        self._refuse(unit, signature, answer, now, refused_at=now + rest)

    def _refuse(
        self, unit: QueuedUnit, signature: Signature, refusal: UnitRefusal, now: float, *, refused_at: float | None
    ) -> None:
        """Let the unit wait for room, or for a place that is held for it. Raises SliceSpent."""
        self.acting.bind_times.refused(request.pod for request in unit.ready)
        preemptor = self.acting.preemptor
        waits = preemptor.consider(unit, signature.digest, refusal.refusal) if preemptor is not None else None
        if isinstance(waits, UnitDecision):
            self._notices.decided(unit, waits)
            self._act_on(unit, signature, waits, now)
            return
        if waits is not None:
            self._unplaced.say(unit, waits)
        if waits is not None and waits.keeps_gate:
            self.waiting.queue.wait(unit.pod.key, waits.until)
        else:
            until, review = (FOREVER, FOREVER) if waits is None else (waits.until, waits.review)
            self._unplaced.refuse(unit, signature, refusal, now, refused_at=refused_at, until=until, review=review)

    def _decide(self, unit: QueuedUnit) -> tuple[UnitDecision | UnitRefusal, float]:
        """Decide the unit. Returns the CPU seconds, too. Raises SliceSpent."""
        most = self.context.settings.scheduling.search_steps
        if unit.gang is not None:
            most = max(most, _STEPS_PER_MEMBER * len(unit.ready)) + _STEPS_OF_RETRIES
        steps = min(self._steps.find(unit.key) or FIRST_ATTEMPT, most)
        options = replace(self.deciding.options, attempt=Attempt(steps, is_last=steps == most))
        began, before = time.perf_counter(), self.context.clock.cpu()
        try:
            answer = decide_unit(self.context.inventory, unit.unit, options, self.deciding.decide)
        except AttemptSpent:
            self._steps.put(unit.key, 2 * steps)
            raise
        spent = self.context.clock.cpu() - before
        if isinstance(answer, UnitDecision) and not answer.placed:
            answer = UnitRefusal.of_elastic(answer)
        self.deciding.held_back.decided(unit.pod, unit.gang.key if unit.gang is not None else None)
        self.context.metrics.decision_seconds.labels(_result(answer)).observe(time.perf_counter() - began)
        return answer, spent

    def _act_on(self, unit: QueuedUnit, signature: Signature, answer: UnitDecision, now: float) -> None:
        """Place the unit, unless something else must happen first."""
        if not self.acting.fence.holds(drivers := _drivers_of(answer)):
            self._notices.not_yet(unit, f"the fence of {', '.join(sorted(drivers))} is not in force yet")
            self._wait(unit, FOREVER, "no fence", now, passing=True)
        elif unit.gang is not None or self._may_be_placed(unit, signature, answer, now):
            self._place(unit, answer)

    def _may_be_placed(self, unit: QueuedUnit, signature: Signature, answer: UnitDecision, now: float) -> bool:
        """Return whether a pod may be placed before kube-scheduler does anything else. If not, the
        queue knows for how long it waits.
        """
        ((request, decision),) = answer.placed
        if self._waits_for_nominated(request, decision, now):
            self._notices.not_yet(unit, f"kube-scheduler is making room for it on {request.preferred_node}")
            self.waiting.queue.wait(unit.pod.key, now + _NOMINATION_INTERVAL)
        elif not request.required_node and not self.context.inventory.rules.fits_in_any_order(
            request.pod, decision.node
        ):
            why = "other pods must be bound before it, or kube-scheduler would find its topology spread or affinity broken"
            self._notices.not_yet(unit, why)
            self._unplaced.wait_for_others(unit.pod.key, signature, refused_at=now)
        elif not decision.allocations:
            foreign = Foreign("nothing of it is ours to allocate", signature.digest)
            self._unplaced.leave_to_others(unit.pod, foreign, now)
        else:
            return True
        return False

    def _waits_for_nominated(self, request: SchedulingRequest, decision: Decision, now: float) -> bool:
        """Return whether to wait for the node that kube-scheduler is emptying for this pod.

        Otherwise its victims would be evicted for nothing.
        """
        nominated = node_made_free(request.pod)
        if not nominated or decision.node == nominated or request.required_node:
            return False
        if now >= self.waiting.timeouts.runs_out(request.pod.metadata.uid, "nomination", now):
            return False
        return any(map(is_leaving, self.context.informers.pods_on(nominated)))

    def _place(self, unit: QueuedUnit, answer: UnitDecision) -> None:
        if self.acting.preemptor is not None:
            self.acting.preemptor.placed(unit)
        self._notices.placed(unit, answer)
        self.context.metrics.decisions.labels("placed").inc(len(answer.placed))
        self.waiting.timeouts.forget(unit.key)
        self.waiting.queue.placed(unit.pod.key)
        for request, _ in answer.placed:
            self.waiting.queue.drop(request.pod.key)
        self.triggers.made_room(Change.PODS_MOVED, unit.pod.metadata.namespace)
        placed = [(request.pod, without_trace(decision)) for request, decision in answer.placed]
        self.acting.bind_times.placed(pod for pod, _ in placed)
        if unit.gang is None:
            self.acting.binding_cycle.start(self._group, *placed[0])
        else:
            self.context.metrics.gang_decisions.labels("placed").inc()
            self._gang_life.commit(unit, unit.gang, placed)


def _result(answer: UnitDecision | UnitRefusal) -> str:
    """Return the result's name in the metrics."""
    if isinstance(answer, UnitDecision):
        return "placed"
    return "error" if answer.refusal.error else "refused"


def _drivers_of(answer: UnitDecision) -> set[str]:
    """Return the drivers whose devices the decision allocates."""
    return {
        result["driver"]
        for _, decision in answer.placed
        for entry in decision.allocations
        for result in entry.allocation["devices"]["results"]
    }
