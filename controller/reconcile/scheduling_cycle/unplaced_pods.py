"""Pods that get no devices now: each waits for an event or a time, or is left to kube-scheduler.

Called by `cycle` with the result of an assessment or a decision. Says why (event, decision log),
removes the gate where autoscaler and preemption should see the pod, and tells the queue how long
the pod waits, and for what.
"""

import logging
from collections import OrderedDict
from typing import Final

from controller.assessment import Foreign
from controller.decide import Unschedulable
from controller.reconcile.binding import GateKeeper
from controller.reconcile.queueing import FOREIGN, FOREVER, News, Pending, Schedulable, WaitingPods, helpful
from controller.reconcile.runtime import Context, DecisionLog, messages
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import has_our_gate

log = logging.getLogger(__name__)

_REFUSALS_KEPT: Final = 1_000
_EVEN_INTERVAL: Final = 5.0
"""Seconds after which pods that wait for others to be bound are evaluated in any case."""


class UnplacedPods:
    def __init__(self, context: Context, waiting: WaitingPods, gate: GateKeeper, decision_log: DecisionLog) -> None:
        self._reconsider = context.settings.queueing.reconsider
        self._clock = context.clock
        self._events = context.events
        self._queue = waiting.queue
        self._timeouts = waiting.timeouts
        self._refusals = waiting.refusals
        self._in_flight = waiting.in_flight
        self._gate = gate
        self._decision_log = decision_log
        self._refused: OrderedDict[bytes, Unschedulable] = OrderedDict()
        """Signature → why equal pods were refused last."""
        self._uneven: set[bytes] = set()
        """Signatures of pods whose topology spread fails if they are bound before others."""

    # --- without a decision -----------------------------------------------------------------------

    def let_go(self, pod: Pod, why: str) -> None:
        """Remove the gate of a pod that needs nothing from us."""
        log.debug("pod %s: %s", pod.key, why)
        self._queue.drop(pod.key)
        self._timeouts.forget(pod.metadata.uid)
        self.lift_gate(pod, why)

    def leave_to_others(self, pod: Pod, foreign: Foreign, now: float) -> None:
        """Remove the gate; the pod is assessed again when managed devices appear that match it."""
        log.debug("pod %s: %s", pod.key, foreign.why)
        self._timeouts.forget(pod.metadata.uid)
        self.lift_gate(pod, foreign.why)
        self._queue.no_room(pod.key, foreign.signature, refused_at=now, helps=FOREIGN, ours=False)

    def keep_waiting(self, pod: Pod, wait: Pending, now: float) -> None:
        log.debug("pod %s waits: %s", pod.key, wait.why)
        if wait.behind:
            self._in_flight.put_off(wait.behind, pod.key)
        if wait.event is not None:
            self._events.report(POD, pod, wait.event)
        self._decision_log.waiting(pod, wait.why, passing=wait.passing, at=self._clock.wall())
        until = FOREVER if wait.until is None else wait.until
        if wait.preemption_may_help:
            until = min(until, self._let_see(pod, now))
        self._queue.wait(pod.key, until)

    def lift_gate(self, pod: Pod, why: str) -> None:
        """Remove our gate, if the pod has it."""
        if has_our_gate(pod):
            self._gate.lift(pod, why)

    def _let_see(self, pod: Pod, now: float) -> float:
        """Remove the gate of an unschedulable pod once its timeout is over. Returns when to check again."""
        if not has_our_gate(pod):
            return FOREVER
        until = self._timeouts.runs_out(pod.metadata.uid, "room", now)
        if now < until:
            return until
        self._gate.lift(pod, "no room for a while: autoscaler and preemption should see it")
        return FOREVER

    # --- after a decision -------------------------------------------------------------------------

    def room_made(self, now: float, news: News) -> None:
        """Try the refused pods that these changes may help."""
        self._queue.room_made(now, news)
        self._uneven = self._queue.groups_in(self._uneven)

    def is_uneven(self, signature: bytes) -> bool:
        """Return whether an equal pod waits because it would violate its topology spread."""
        return signature in self._uneven

    def refusal_of(self, signature: bytes) -> Unschedulable | None:
        """Return why an equal pod was refused last, as long as that is remembered."""
        return self._refused.get(signature)

    def over_budget(self, pod: Pod, refusal: Unschedulable, until: float, now: float) -> None:
        """Postpone a pod whose selectors take too long: only its owner, or time, can help.

        It keeps its gate: kube-scheduler would evaluate the same selectors, for each device of each
        node, and has no such limits.
        """
        self._events.report(POD, pod, messages.over_budget(refusal, until - now))
        self._queue.wait(pod.key, until)

    def no_room(
        self, pod: Pod, ready: Schedulable, refusal: Unschedulable, now: float, *, refused_at: float | None
    ) -> None:
        """Queue an unschedulable pod.

        `refused_at`: now, or None if it was not decided because equal pods were refused.
        """
        self._events.report(POD, pod, messages.refused(pod, refusal))
        self._uneven.discard(ready.signature)
        self._refused[ready.signature] = refusal
        self._refused.move_to_end(ready.signature)
        while len(self._refused) > _REFUSALS_KEPT:
            self._refused.popitem(last=False)
        seen = FOREVER if refusal.keeps_gate else self._let_see(pod, now)
        self._queue.no_room(
            pod.key,
            ready.signature,
            min(seen, self._refusals.next_end(pod.metadata.uid, now)),
            refused_at=refused_at,
            helps=helpful(refusal),
            review=self._reconsider,
        )

    def wait_for_others(self, key: str, signature: bytes, *, refused_at: float | None) -> None:
        """Postpone a pod that fits, but would violate its topology spread.

        kube-scheduler must bind others first.
        """
        self._uneven.add(signature)
        self._refused.pop(signature, None)
        self._queue.no_room(key, signature, refused_at=refused_at, review=_EVEN_INTERVAL)
