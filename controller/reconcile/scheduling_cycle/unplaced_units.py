"""Units that get no devices now: each waits for an event or a time, or is left to kube-scheduler.

Called by `cycle` with the result of an assessment or a decision. Says why (`notices`), removes the
gates where autoscaler and preemption should see the pods, releases what they hold, and tells the
queue how long the unit waits, and for what.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from controller.assessment import Foreign, Signature
from controller.cluster.incremental import LruCache
from controller.gangs import UnitRefusal
from controller.reasons import ANY, FOREIGN
from controller.reconcile.preemption import Waits
from controller.reconcile.queueing import FOREVER, News, Pending, QueuedUnit, WaitingPods, helpful
from controller.reconcile.runtime import Context
from controller.reconcile.scheduling_cycle.collaborators import Acting
from controller.reconcile.scheduling_cycle.gang_life import GangLife
from controller.reconcile.scheduling_cycle.notices import Notices
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podstate import has_our_gate

log = logging.getLogger(__name__)

_REFUSALS_KEPT: Final = 1_000
_EVEN_INTERVAL: Final = 5.0
"""Seconds after which pods that wait for others to be bound are evaluated in any case."""
DEVICES_OF_GANG: Final = "its gang has its devices"


@dataclass(eq=False)
class UnplacedUnits:
    context: Context
    waiting: WaitingPods
    acting: Acting
    notices: Notices
    gang_life: GangLife
    _refused: LruCache[UnitRefusal] = field(default_factory=lambda: LruCache(_REFUSALS_KEPT))
    """Signature → why an equal unit was refused last."""
    _uneven: set[bytes] = field(default_factory=set)
    """Signatures of pods whose topology spread fails if they are bound before others."""
    group: asyncio.TaskGroup = field(init=False)
    """Of the scheduling cycle; set by it."""

    # --- without a decision -----------------------------------------------------------------------

    def let_go(self, unit: QueuedUnit, now: float) -> None:
        """Remove the gates of a unit whose pods need nothing from us."""
        for each in unit.settled:
            if unit.gang is None and isinstance(each.why, Foreign):
                self.leave_to_others(each.pod, each.why, now)
                continue
            why = DEVICES_OF_GANG if unit.gang is not None else each.why.why
            log.debug("pod %s: %s", each.pod.key, why)
            self.waiting.queue.drop(each.pod.key)
            self.waiting.timeouts.forget(each.pod.metadata.uid)
            self.lift_gate(each.pod, why)

    def leave_to_others(self, pod: Pod, foreign: Foreign, now: float) -> None:
        """Remove the gate; the pod is assessed again when managed devices appear that match it."""
        log.debug("pod %s: %s", pod.key, foreign.why)
        self.waiting.timeouts.forget(pod.metadata.uid)
        self.lift_gate(pod, foreign.why)
        self.waiting.queue.no_room(pod.key, foreign.signature, refused_at=now, helps=FOREIGN, ours=False)

    def postpone(self, pod: Pod, wait: Pending) -> None:
        """Let the pod, or the gang for which it stands, wait without being assessed."""
        self.notices.waits(pod, wait)
        self.waiting.queue.wait(pod.key, FOREVER if wait.until is None else wait.until)

    def keep_waiting(self, unit: QueuedUnit, now: float, until: float) -> None:
        """A pod cannot be decided now, so no member of its gang is. `until`: it is assessed then at the latest."""
        first = unit.blocked[0]
        wait = first.why
        until = until if wait.until is None else min(until, wait.until)
        why = self.notices.blocked(unit, first, now)
        if wait.preemption_may_help:
            until = min(until, self._let_see(unit, now))
        if wait.behind:
            self.waiting.in_flight.put_off(wait.behind, unit.pod.key)
        else:
            until = min(until, self._end_of_hold(unit, why, now, passing=wait.passing))
        self.waiting.queue.wait(unit.pod.key, until)
        self._lift_others(unit)

    def lift_gate(self, pod: Pod, why: str) -> None:
        """Remove our gate, if the pod has it."""
        if has_our_gate(pod):
            self.acting.gate.lift(pod, why)

    def _let_see(self, unit: QueuedUnit, now: float) -> float:
        """Remove all gates of an unschedulable unit together, once its patience is over. Returns when
        to check again. While too few members have devices, one that has some keeps its gate: it
        would run alone.
        """
        gated = [pod for pod in unit.pods if has_our_gate(pod)]
        if not gated:
            return FOREVER
        until = self.waiting.timeouts.runs_out(unit.key, "room", now)
        if now < until:
            return until
        keeps = unit.gang is not None and unit.least > 0
        for pod in gated:
            if not keeps or not any(claim.status.allocation for claim in self.context.informers.claims_of(pod)):
                self.acting.gate.lift(pod, "no room for a while: autoscaler and preemption should see it")
        return FOREVER

    def _end_of_hold(self, unit: QueuedUnit, why: str, now: float, *, passing: bool = False) -> float:
        """Release what the unit holds since it cannot run now, or return until when it is kept. A pod
        alone gives back at once the claims that only it holds.
        """
        if unit.gang is not None:
            return self.gang_life.end_of_hold(unit, unit.gang, why, now, passing=passing)
        if any(map(self.acting.claims.is_ours, self.context.informers.claims_of(unit.pod))):
            release = self.acting.deallocator.release(unit.pod, why)
            self.group.create_task(release, name=f"release {unit.pod.key}")
        return FOREVER

    def _lift_others(self, unit: QueuedUnit) -> None:
        """Lift the gates of members that have no devices while others of the gang have theirs.

        kube-scheduler queues a PodGroup as one: a gate that stays on one member holds all of them.
        """
        if unit.gang is not None and unit.gang.key.source == "PodGroup" and not unit.least:
            for pod in (*(request.pod for request in unit.ready), *(each.pod for each in unit.blocked)):
                self.lift_gate(pod, "the other members of its PodGroup have their devices")

    # --- after a decision -------------------------------------------------------------------------

    def room_made(self, now: float, news: News) -> None:
        """Try the refused units that these changes may help."""
        self.waiting.queue.room_made(now, news)
        self._uneven = self.waiting.queue.groups_in(self._uneven)

    def is_uneven(self, signature: Signature) -> bool:
        """Return whether an equal pod waits because it would violate its topology spread."""
        return signature.digest in self._uneven

    def refusal_of(self, signature: Signature) -> UnitRefusal | None:
        """Return why an equal unit was refused last, as long as that is remembered."""
        return self._refused.find(signature.digest)

    def refuse(
        self,
        unit: QueuedUnit,
        signature: Signature,
        refusal: UnitRefusal,
        now: float,
        *,
        refused_at: float | None,
        until: float = FOREVER,
        review: float = FOREVER,
    ) -> None:
        """Queue a unit that found no room, and release what it holds, which keeps devices from others.

        `until`: when it is evaluated at the latest; `review`: it, or an equal one. `refused_at`: from when
        on it pauses, or None if it was not decided because an equal one was refused. Selectors that take too long postpone it: only its owner, or time, can help. It keeps
        its gates then, for kube-scheduler would evaluate the same selectors, for each device of each
        node, and has no such limits.
        """
        self.notices.refused(unit, refusal, now)
        why = refusal.message if unit.gang is not None else "its other claims do not fit next to it"
        until = min(until, self._end_of_hold(unit, why, now))
        self._lift_others(unit)
        if refusal.refusal.overrun is not None:
            self.waiting.queue.wait(unit.pod.key, min(until, refusal.refusal.overrun.until))
            return
        self._uneven.discard(signature.digest)
        self._refused.put(signature.digest, refusal)
        if not refusal.refusal.keeps_gate:
            until = min(until, self._let_see(unit, now))
        self.waiting.queue.no_room(
            unit.pod.key,
            signature.digest,
            min(until, *(self.waiting.refusals.next_end(request.pod.metadata.uid, now) for request in unit.ready)),
            refused_at=refused_at,
            helps=helpful(refusal.refusal) if signature.is_uniform else ANY,
            review=min(review, (refused_at or now) + self.context.settings.queueing.reconsider),
        )

    def say(self, unit: QueuedUnit, waits: Waits) -> None:
        """Tell what becomes of a unit for which pods are evicted, or will be."""
        if waits.keeps_gate:
            self.notices.not_yet(unit, waits.why)
        if waits.said is not None:
            self.context.events.report(POD, unit.pod, waits.said, "Preempt")

    def wait_for_others(self, key: str, signature: Signature, *, refused_at: float | None) -> None:
        """Postpone a pod that fits, but would violate its topology spread. kube-scheduler must bind others first."""
        self._uneven.add(signature.digest)
        review = FOREVER if refused_at is None else refused_at + _EVEN_INTERVAL
        self.waiting.queue.no_room(key, signature.digest, refused_at=refused_at, review=review)
