"""The scheduling cycle: decides one pod after the other in memory, assumes it, writes it in the
background.

Created by `controller` for the time this process leads. `triggers` puts pods into the queue, `run`
takes them out. Decisions are serial, so that each sees all before it; commits run concurrently
(`binding_cycle`), so that the API server's latency does not delay the next decision. Nothing is
decided while no fence is known to hold, and nothing is committed for a driver whose fence is down;
pods that need no decision are ungated nevertheless.
"""

import asyncio
import logging
import time
from functools import partial
from typing import Final

from msgspec.structs import replace

from controller.allocation import AttemptSpent
from controller.assessment import Foreign, Ignored
from controller.decide import (
    Decision,
    EqualRefusals,
    SchedulingRequest,
    Unschedulable,
    without_trace,
)
from controller.inventory import SliceSpent
from controller.reconcile.observability import decision_logging
from controller.reconcile.queueing import (
    Answer,
    Change,
    NamespaceWaits,
    News,
    Pending,
    Schedulable,
    Triggers,
    WaitingPods,
    content_of,
)
from controller.reconcile.runtime import Context, messages
from controller.reconcile.scheduling_cycle.collaborators import Acting, Deciding, drivers_of
from controller.reconcile.scheduling_cycle.gangs import GangCycle
from controller.reconcile.scheduling_cycle.search_attempts import SearchAttempts
from controller.reconcile.scheduling_cycle.unplaced_pods import UnplacedPods
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_leaving, node_made_free
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

_ROOM_INTERVAL: Final = 0.02
"""Seconds between two rounds over the groups of refused pods: a burst of events causes one round."""
_NOMINATION_INTERVAL: Final = 1.0


class SchedulingCycle:
    def __init__(
        self, context: Context, deciding: Deciding, waiting: WaitingPods, triggers: Triggers, acting: Acting
    ) -> None:
        self._guard = context.guard("decisions")
        self._informers = context.informers
        self._inventory = context.inventory
        self._settings = context.settings.scheduling
        self._retry_after_error = context.settings.binding.retry_most
        self._clock = context.clock
        self._events = context.events
        self._metrics = context.metrics
        self._deciding = deciding
        self._queue = waiting.queue
        self._timeouts = waiting.timeouts
        self._wake = waiting.wake
        self._triggers = triggers
        self._acting = acting
        self._unplaced = UnplacedPods(context, waiting, acting.gate, deciding.log)
        self._attempts = SearchAttempts()
        self.gangs = GangCycle(
            context, deciding, waiting, triggers, acting, unplaced=self._unplaced, attempts=self._attempts
        )
        self._group: asyncio.TaskGroup
        self._fence_changed = False
        self._equal = EqualRefusals()
        self._room_not_before = float("-inf")

    async def run(self) -> None:
        """Run until cancelled, or `LeadershipLost` (in an exception group)."""
        async with asyncio.TaskGroup() as self._group:
            self.gangs.group = self._group
            self._group.create_task(self.gangs.notices.run(), name="notices of gangs")
            self._triggers.start()
            while True:
                await self._acting.binding_cycle.slots.wait()
                now = self._clock.monotonic()
                self._spread_news(now)
                key = self._queue.pop(now)
                if key is None:
                    await self._idle(now)
                    continue
                before = self._clock.cpu()
                self._evaluate_guarded(key, now)
                spent = self._clock.cpu() - before
                self._queue.charge(spent, self._deciding.selectors.caused_by_others())
                # After long work, leave the rest of the loop as much time as the work took.
                await self._clock.sleep(spent if spent >= self._settings.selectors.slice else 0)

    def fence_changed(self) -> None:
        """Wake pods that wait for a fence. Subscribed by the term."""
        self._fence_changed = True
        self._wake.set()

    # --- waiting ----------------------------------------------------------------------------------

    def _spread_news(self, now: float) -> None:
        if self._fence_changed:
            self._fence_changed = False
            for key in self._queue.keys_in("waiting"):
                with self._guard.each(key):
                    if (pod := self._informers.pod(key)) is not None:
                        self._triggers.evaluate(pod)
        # a refused pod must hear of room before a pod of lower priority takes it
        if self._triggers.news and (now >= self._room_not_before or self._queue.is_outranked(now)):
            self._room_not_before = now + _ROOM_INTERVAL
            self._unplaced.room_made(now, self._triggers.news)
            self._triggers.news = News()

    async def _idle(self, now: float) -> None:
        until = self._queue.next_timer()
        if self._triggers.news:
            until = min(until, self._room_not_before)
        await wait_at_most(self._wake, until - now)
        self._wake.clear()

    # --- one pod ----------------------------------------------------------------------------------

    def _evaluate_guarded(self, key: str, now: float) -> None:
        """Call `_evaluate`; an unexpected error postpones the pod, and ends nothing."""
        try:
            self._evaluate(key, now)
        except Exception as error:
            if not self._guard.contains(key, error):
                raise
            self._queue.wait(key, now + self._retry_after_error)

    def _evaluate(self, key: str, now: float) -> None:
        pod = self._informers.pod(key)
        if pod is None:
            self._queue.drop(key)
            return
        if not self._settings.gate:
            self._unplaced.lift_gate(pod, "the gate is off")
        gang = self.gangs.members.of(pod)
        if gang is not None and not self.gangs.members.stands_for(pod, gang):
            return
        held_back = self._deciding.held_back
        if (hold := held_back.hold(pod, now, gang)) is not None:
            event = messages.decision_stalled(hold.why)
            self._unplaced.keep_waiting(pod, Pending(hold.why, hold.until, passing=False, event=event), now)
            return
        before = time.perf_counter()
        budget = self._deciding.selectors.of(pod.metadata.namespace, partial(self._selectors_of, pod), now)
        try:
            with held_back.deciding_on(pod, gang), self._inventory.verdicts.within(budget):
                if gang is not None:
                    self.gangs.evaluate(gang, pod, now)
                else:
                    self._act(pod, self._deciding.assessor.assess(pod, now), now)
            budget.decided()
        except NamespaceWaits as wait:
            event = messages.namespace_over_budget(wait.note)
            self._unplaced.keep_waiting(pod, Pending(wait.note, wait.until, event=event), now)
        except SliceSpent:
            log.debug("pod %s: goes on when it is its namespace's turn again", key)
            self._metrics.decision_seconds.labels("unfinished").observe(time.perf_counter() - before)
            self._queue.unfinished(key)
        except Exception:  # a failure on one pod must not stop the loop
            log.exception("pod %s: cannot be decided", key)
            self._metrics.decisions.labels("error").inc()
            self._events.report(POD, pod, messages.internal_error(messages.FILTERING_FAILED))
            self._queue.wait(key, now + self._retry_after_error)

    def _selectors_of(self, pod: Pod) -> bytes:
        claims = [self._informers.claim(key) for key in claim_keys(pod)]
        return content_of(claim for claim in claims if claim is not None)

    def _act(self, pod: Pod, answer: Answer, now: float) -> None:
        match answer:
            case Ignored(why):
                self._unplaced.let_go(pod, why)
            case Foreign():
                self._unplaced.leave_to_others(pod, answer, now)
            case Pending():
                self._unplaced.keep_waiting(pod, answer, now)
                if not answer.behind:
                    self._release(pod, answer.why)
            case Schedulable():
                self._decide_on(pod, answer, now)

    # --- deciding ---------------------------------------------------------------------------------

    def _decide_on(self, pod: Pod, ready: Schedulable, now: float) -> None:
        key = pod.key
        if self._inventory.starts_over(pod):
            self._triggers.made_room(Change.DEVICES_FREED)
        if self._must_wait(pod, now):
            return
        if self._queue.is_known_full(ready.signature):
            if self._unplaced.is_uneven(ready.signature):
                self._unplaced.wait_for_others(key, ready.signature, refused_at=None)
                return
            if (known := self._unplaced.refusal_of(ready.signature)) is not None:
                self._remember(ready.request, known)
                self._refuse(pod, ready, known, now, refused_at=None)
                return
        answer = self._decide(pod, ready.request)
        self._remember(ready.request, answer)
        decision_logging.details(self._inventory, ready.request, self._deciding.options, answer)
        answer = self._equal.of(without_trace(answer))
        if isinstance(answer, Unschedulable):
            decision_logging.refused(pod, answer)
            self._metrics.refused(answer.reasons, error=bool(answer.error))
            self._refuse(pod, ready, answer, now, refused_at=now)
        else:
            self._act_on(pod, ready, answer, now)

    def _act_on(self, pod: Pod, ready: Schedulable, decision: Decision, now: float) -> None:
        """Place the pod, unless something else must happen first."""
        if not self._acting.fence.holds(drivers := drivers_of(decision)):
            self._not_yet(ready.request, f"the fence of {', '.join(sorted(drivers))} is not in force yet")
            self._queue.wait(pod.key)
        elif self._waits_for_nominated(pod, ready.request, decision, now):
            self._not_yet(ready.request, f"kube-scheduler is making room for it on {ready.request.preferred_node}")
            self._queue.wait(pod.key, now + _NOMINATION_INTERVAL)
        elif not ready.request.required_node and not self._inventory.fits_in_any_order(pod, decision.node):
            why = "other pods must be bound before it, or kube-scheduler would find its topology spread or affinity broken"
            self._not_yet(ready.request, why)
            self._unplaced.wait_for_others(pod.key, ready.signature, refused_at=now)
        else:
            self._place(pod, ready, decision, now)

    def _must_wait(self, pod: Pod, now: float) -> bool:
        """Return whether the pod must not be decided now; the queue then knows for how long."""
        namespace = pod.metadata.namespace
        if self._acting.fence.is_down:
            self._queue.wait(pod.key)
        elif now < (until := self._acting.binding_cycle.paused_until(pod)):
            self._queue.wait(pod.key, until)
        elif not self._acting.binding_cycle.slots.may_start(namespace):
            self._acting.binding_cycle.slots.park(namespace, pod.key)
            self._queue.wait(pod.key)
        else:
            return False
        return True

    def _decide(self, pod: Pod, request: SchedulingRequest) -> Decision | Unschedulable:
        """Decide the pod. Raises SliceSpent.

        A pod that keeps an earlier claim counts on that claim's node; it must not block itself
        there.
        """
        counted_on = self._inventory.assumed_node(pod.metadata.uid)
        self._inventory.forget_pod(pod.metadata.uid)
        before = time.perf_counter()
        attempt = self._attempts.next(pod.metadata.uid, self._settings.search_steps)
        try:
            answer = self._deciding.decide(self._inventory, request, replace(self._deciding.options, attempt=attempt))
        except AttemptSpent:
            self._attempts.spent(pod.metadata.uid, attempt)
            raise
        finally:
            if counted_on:
                self._inventory.assume_pod(pod, counted_on)
        seconds = time.perf_counter() - before
        self._deciding.held_back.decided(pod)
        self._metrics.decision_seconds.labels(_result(answer)).observe(seconds)
        return answer

    def _remember(self, request: SchedulingRequest, answer: Decision | Unschedulable) -> None:
        """Store the decision for explanations."""
        at, now = self._clock.wall(), self._clock.monotonic()
        self._deciding.log.record(self._inventory, request, self._deciding.options, answer, at=at, now=now)

    def _not_yet(self, request: SchedulingRequest, why: str) -> None:
        """Store that the decision is not carried out for now."""
        claims = (entry.claim.key for entry in request.claims)
        self._deciding.log.waiting(request.pod, why, claims, passing=True, at=self._clock.wall(), replacing=True)

    def _refuse(
        self, pod: Pod, ready: Schedulable, refusal: Unschedulable, now: float, *, refused_at: float | None
    ) -> None:
        """Queue an unschedulable pod, and release its allocated claims, which keep devices from other pods."""
        if refusal.overrun is not None:
            self._unplaced.over_budget(pod, refusal, refusal.overrun.until, now)
        else:
            self._unplaced.no_room(pod, ready, refusal, now, refused_at=refused_at)
        self._release(pod, "its other claims do not fit next to it")

    def _release(self, pod: Pod, why: str) -> None:
        """Release the claims that only this pod holds, since it cannot run now."""
        if any(map(self._acting.claims.is_ours, self._informers.claims_of(pod))):
            release = self._acting.deallocator.release(pod, why)
            self._group.create_task(release, name=f"release {pod.key}")

    def _place(self, pod: Pod, ready: Schedulable, decision: Decision, now: float) -> None:
        if not decision.allocations:
            self._unplaced.leave_to_others(pod, Foreign("nothing of it is ours to allocate", ready.signature), now)
            return
        decision_logging.placed(pod, decision)
        self._metrics.decisions.labels("placed").inc()
        self._timeouts.forget(pod.metadata.uid)
        self._queue.placed(pod.key)
        self._triggers.made_room(Change.PODS_MOVED, pod.metadata.namespace)
        self._acting.binding_cycle.start(self._group, pod, decision)

    def _waits_for_nominated(self, pod: Pod, request: SchedulingRequest, decision: Decision, now: float) -> bool:
        """Return whether to wait for the node that kube-scheduler is emptying for this pod.

        Otherwise its victims would be evicted for nothing.
        """
        nominated = node_made_free(pod)
        if not nominated or decision.node == nominated or request.required_node:
            return False
        if now >= self._timeouts.runs_out(pod.metadata.uid, "nomination", now):
            return False
        return any(map(is_leaving, self._informers.pods_on(nominated)))


def _result(answer: Decision | Unschedulable) -> str:
    """Return the result's name in the metrics."""
    if isinstance(answer, Decision):
        return "placed"
    return "error" if answer.error else "refused"
