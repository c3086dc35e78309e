"""The scheduling cycle of gangs: pods of which none may run before enough of them can.

Called by `cycle` for every pending member. One member, the oldest that waits, stands for the gang
in the queue; whatever wakes another one wakes it. All members are decided at once (`decide_gang`),
assumed at once, and committed as one (`binding.gang_commit`). What a gang holds while it is not
being committed is released, or kept for a bounded time (`--gang-hold`) while other members run
(`gang_holdings`).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from functools import partial
from typing import Final

from msgspec.structs import replace

from controller.allocation import AttemptSpent
from controller.gangs import (
    API_GROUPS,
    GangDecision,
    GangKey,
    GangRequest,
    GangState,
    GangUnschedulable,
    decide_gang,
)
from controller.reconcile.queueing import (
    FOREVER,
    Change,
    GangAssessment,
    GangQueue,
    Triggers,
    WaitingPods,
    assess_gang,
    helpful,
)
from controller.reconcile.runtime import Context, messages
from controller.reconcile.scheduling_cycle.collaborators import Acting, Deciding, drivers_of
from controller.reconcile.scheduling_cycle.gang_holdings import GangHoldings
from controller.reconcile.scheduling_cycle.gang_notices import ARRIVAL, NOTED, GangNotices
from controller.reconcile.scheduling_cycle.search_attempts import SearchAttempts
from controller.reconcile.scheduling_cycle.unplaced_pods import UnplacedPods
from hami_dra.api.core import Pod
from hami_dra.api.podstate import other_gates
from hami_dra.kube.protocol import ClusterError

log = logging.getLogger(__name__)

_REFUSALS_KEPT: Final = 1_000
_SETTLES: Final = 1.0
"""Seconds between two looks at a large gang that lacks members or must be corrected: its pods come
and go one by one, and each look reads all of them.
"""
_STEPS_PER_MEMBER: Final = 64
"""Of the longest attempt, so that a large gang of eight cards each can be placed."""
_REST: Final = 19.0
"""A refused gang is not tried again before this many times the duration of its decision have
passed: big gangs that cannot run take at most a twentieth of the time.
"""


class GangCycle:
    def __init__(
        self,
        context: Context,
        deciding: Deciding,
        waiting: WaitingPods,
        triggers: Triggers,
        acting: Acting,
        *,
        unplaced: UnplacedPods,
        attempts: SearchAttempts,
    ) -> None:
        self._inventory = context.inventory
        self._gangs = context.informers.gangs
        self._informers = context.informers
        self._settings = context.settings
        self._clock = context.clock
        self._metrics = context.metrics
        self._deciding = deciding
        self._queue = waiting.queue
        self._refusals = waiting.refusals
        self._in_flight = waiting.in_flight
        self._triggers = triggers
        self._acting = acting
        self._unplaced = unplaced
        self._attempts = attempts
        self.members = GangQueue(context, waiting)
        self._holdings = GangHoldings(context, acting, self.members)
        self.notices = GangNotices(context, deciding, self.members)
        self.group: asyncio.TaskGroup
        """Of the scheduling cycle; set by it."""
        self._refused: OrderedDict[bytes, GangUnschedulable] = OrderedDict()
        """Signature → why an equal gang was refused last."""

    # --- one evaluation ---------------------------------------------------------------------------

    def evaluate(self, key: GangKey, pod: Pod, now: float) -> None:
        """Evaluate the gang for which the pod stands. Raises SliceSpent: it is evaluated again in its next turn."""
        waiting = self.members.remembered(key)
        if now < waiting.settles_at and self._gangs.cannot_run(key):
            self._queue.wait(pod.key, waiting.settles_at)
            return
        waiting.settles_at = now + _SETTLES
        state = self._gangs.state(key)
        self.members.rerank(key)
        if self._waits_for_writes(state, pod):
            return
        if state.problem:
            self._cannot_run(state, pod, messages.invalid_gang(state.problem), now)
        elif state.missing:
            if waiting.incomplete_since is None:
                waiting.incomplete_since = now
            self._cannot_run(
                state, pod, messages.gang_incomplete(state), now, said_from=waiting.incomplete_since + ARRIVAL
            )
        else:
            waiting.incomplete_since = None
            self._act(self._assess(state, now), pod, now)

    def _assess(self, state: GangState, now: float) -> GangAssessment:
        waiting = self.members.remembered(state.key)
        found = assess_gang(self._deciding.assessor.assess, self._node_of, state, now, waiting.blocked_by)
        waiting.blocked_by = found.blocked[0].pod.key if found.blocked else ""
        return found

    def _act(self, found: GangAssessment, pod: Pod, now: float) -> None:
        if not found.least:
            for member in found.settled:
                self._unplaced.lift_gate(member, "its gang has its devices")
        if found.is_blocked or (found.blocked and not found.ready):
            self._keep_waiting(found, pod, now)
        elif not found.ready:
            self._let_go(found, pod)
        elif not self._must_wait(found, pod, now):
            self._decide_on(found, pod, now)

    def _waits_for_writes(self, state: GangState, pod: Pod) -> bool:
        """Return whether a member is being written; the gang is evaluated when that has ended."""
        if self._holdings.is_releasing(state.key):
            self._queue.wait(pod.key)
            return True
        for member in state.pending:
            uid = member.metadata.uid
            if uid in self._in_flight:
                self._in_flight.put_off(uid, pod.key)
                self._queue.wait(pod.key)
                return True
        return False

    def _node_of(self, pod: Pod) -> str:
        return self._inventory.assumed_node(pod.metadata.uid) or pod.status.nominated_node_name

    # --- without a decision -----------------------------------------------------------------------

    def _cannot_run(
        self, state: GangState, pod: Pod, message: messages.Message, now: float, *, said_from: float = float("-inf")
    ) -> None:
        """The gang is not complete, or its group is wrong: it holds nothing and keeps its gates.

        `said_from`: when there is to be an event.
        """
        self._metrics.gang_decisions.labels("incomplete").inc()
        self.notices.note(state.pending[:NOTED], message.note)
        self.members.remembered(state.key).patient_until = None
        until = self._holdings.end(self.group, state, message.note, now)
        if now < said_from:
            until = min(until, said_from)
        else:
            self.notices.tell(state.key, pod, message, now)
        self._queue.wait(pod.key, until)

    def _keep_waiting(self, found: GangAssessment, pod: Pod, now: float) -> None:
        """A member cannot be decided now, so none is."""
        member, wait = found.blocked[0].pod, found.blocked[0].wait
        if wait.behind:
            self._in_flight.put_off(wait.behind, pod.key)
        why = f"pod {member.key}: {wait.why}"
        self.notices.note((pod, member), why, passing=wait.passing)
        if not other_gates(member):  # its owner says why
            message = messages.gang_blocked(found.state, member, wait.why)
            event = replace(wait.event, brief=message.brief) if wait.event is not None else None
            self.notices.tell(found.state.key, member if event is not None else None, event or message, now)
        until = FOREVER if wait.until is None else wait.until
        if wait.preemption_may_help:
            until = min(until, self._let_see(found, now))
        self._queue.wait(pod.key, min(until, self._end_of_hold(found, why, now, passing=wait.passing)))
        self._lift_others(found)

    def _let_go(self, found: GangAssessment, pod: Pod) -> None:
        """Enough members have their devices: lift the gates of all that need no decision."""
        self.members.forget(found.state.key)
        self._queue.drop(pod.key)
        for member in found.settled:
            self._unplaced.let_go(member, "its gang has its devices")

    def _must_wait(self, found: GangAssessment, pod: Pod, now: float) -> bool:
        """Return whether the gang must not be decided now; the queue then knows for how long."""
        namespace = found.state.key.namespace
        cycle = self._acting.binding_cycle
        paused = max((cycle.paused_until(member.request.pod) for member in found.ready), default=now)
        if now < (complete := self._arrived(found.state, now)):
            until = min(complete, self._end_of_hold(found, "more members may be created", now, passing=True))
        elif self._acting.fence.is_down:
            until = self._end_of_hold(found, "the fence is not in force", now, passing=True)
        elif now < paused:
            until = min(paused, self._end_of_hold(found, "its last commit failed", now))
        elif not cycle.slots.may_start(namespace):
            cycle.slots.park(namespace, pod.key)
            until = FOREVER
        else:
            return False
        self._queue.wait(pod.key, until)
        return True

    def _arrived(self, state: GangState, now: float) -> float:
        """Return until when more members may be created. Those that ended well stand in for members
        that do not exist, and the pods of a Job come one after the other.
        """
        waiting, count = self.members.remembered(state.key), len(state.pending)
        if waiting.arrived[0] != count:
            waiting.arrived = (count, now)
        return waiting.arrived[1] + ARRIVAL if state.stand_ins else now

    def _end_of_hold(self, found: GangAssessment, why: str, now: float, *, passing: bool = False) -> float:
        """Release what the members hold that have devices, or return until when it is kept. If
        enough have theirs they are about to run, whatever happens to the others.
        """
        safe = () if found.least else found.settled
        return self._holdings.end(self.group, found.state, why, now, passing=passing, about_to_run=safe)

    def _let_see(self, found: GangAssessment, now: float) -> float:
        """Lift all gates of a complete gang together, once its patience is over. Returns when. While
        too few have devices, a member that has some keeps its gate: it would run alone.
        """
        waiting = self.members.remembered(found.state.key)
        if waiting.patient_until is None:
            waiting.patient_until = now + self._settings.queueing.gate_patience
        if now < waiting.patient_until:
            return waiting.patient_until
        for member in found.state.pending:
            if not found.least or not any(claim.status.allocation for claim in self._informers.claims_of(member)):
                self._unplaced.lift_gate(member, "no room for the gang for a while: autoscalers should see it")
        return FOREVER

    def _lift_others(self, found: GangAssessment) -> None:
        """Lift the gates of members that have no devices while others of the gang have theirs.

        kube-scheduler queues a PodGroup as one: a gate that stays on one member holds all of them.
        """
        if found.state.key.source == "PodGroup" and not found.least:
            for member in (*(each.request.pod for each in found.ready), *(each.pod for each in found.blocked)):
                self._unplaced.lift_gate(member, "the other members of its PodGroup have their devices")

    # --- deciding ---------------------------------------------------------------------------------

    def _decide_on(self, found: GangAssessment, pod: Pod, now: float) -> None:
        signature = found.signature
        for member in found.ready:
            if self._inventory.starts_over(member.request.pod):
                self._triggers.made_room(Change.DEVICES_FREED)
        if self._queue.is_known_full(signature) and (known := self._refused.get(signature)) is not None:
            self._refuse(found, pod, known, now, signature=signature, refused_at=None)
            return
        answer = self._decide(found)
        if isinstance(answer, GangUnschedulable):
            self._metrics.gang_decisions.labels("refused").inc()
            self._refused[signature] = answer
            self._refused.move_to_end(signature)
            while len(self._refused) > _REFUSALS_KEPT:
                self._refused.popitem(last=False)
            self._refuse(
                found,
                pod,
                answer,
                now,
                signature=signature,
                refused_at=now + _REST * self.members.remembered(found.state.key).spent,
            )
        elif not self._acting.fence.holds(drivers := _drivers_of(answer)):
            self.notices.note(found.state.pending, f"the fence of {', '.join(sorted(drivers))} is not in force yet")
            self._queue.wait(pod.key, self._end_of_hold(found, "no fence", now, passing=True))
        else:
            self._metrics.gang_decisions.labels("placed").inc()
            self._place(found, answer, pod)

    def _decide(self, found: GangAssessment) -> GangDecision | GangUnschedulable:
        """Decide all members at once. Raises SliceSpent."""
        key, waiting = found.state.key, self.members.remembered(found.state.key)
        members = tuple([member.request for member in found.ready])
        most = max(self._settings.scheduling.search_steps, _STEPS_PER_MEMBER * len(members))
        attempt, before = self._attempts.next(key, most), self._clock.cpu()
        request = GangRequest(key, members, found.least, found.topology, found.settled_nodes)
        try:
            answer = decide_gang(self._inventory, request, replace(self._deciding.options, attempt=attempt))
        except AttemptSpent:
            self._attempts.spent(key, attempt)
            raise
        waiting.spent = self._clock.cpu() - before
        if isinstance(answer, GangDecision) and not answer.placed:
            answer = GangUnschedulable.of_elastic(answer)
        result = "placed" if isinstance(answer, GangDecision) else "refused"
        self._metrics.decision_seconds.labels(result).observe(waiting.spent)
        self._deciding.held_back.decided(found.ready[0].request.pod, key)
        self.notices.decided(found, answer)
        return answer

    def _place(self, found: GangAssessment, answer: GangDecision, pod: Pod) -> None:
        state, placed = found.state, [(request.pod, decision) for request, decision in answer.placed]
        log.info("%s: %d members placed%s", state.key, len(placed), f" in {answer.domain}" if answer.domain else "")
        self._metrics.decisions.labels("placed").inc(len(placed))
        self.members.remembered(state.key).patient_until = None
        self._queue.placed(pod.key)
        for member, _ in placed:
            self._queue.drop(member.key)
        self._triggers.made_room(Change.PODS_MOVED, state.key.namespace)
        start = self._acting.binding_cycle.start_gang
        done = partial(self._committed, state.key, {member.metadata.uid for member, _ in placed})
        uids = {each.metadata.uid for each in (*found.settled, *(member for member, _ in placed))}
        check = partial(self._check, state, uids, reread=bool(found.least))
        for together in [placed] if found.least else [[each] for each in placed]:
            start(self.group, state.key, together, check=check, done=done)
        self.members.forget(state.key)

    def _committed(self, key: GangKey, uids: Collection[str]) -> None:
        """Evaluate the gang if members wait that were not committed, including members created since."""
        if any(pod.metadata.uid not in uids for pod in self._gangs.state(key).pending):
            self.members.wake(key)

    async def _check(self, decided: GangState, uids: Collection[str], *, reread: bool) -> str:
        """As `_problem`; the gang is evaluated if there is one."""
        if problem := await self._problem(decided, uids, reread=reread):
            self.members.wake(decided.key)
        return problem

    async def _problem(self, decided: GangState, uids: Collection[str], *, reread: bool) -> str:
        """Return why the gang must not run after all, or empty. `uids`: members with devices.

        `reread`: the PodGroup is read again, for a minCount that was raised before the last claim
        was written counts, even if the watch has not shown it yet.
        """
        key = decided.key
        if reread and key.source in API_GROUPS:
            try:
                if not await self._informers.reread_pod_group(key):
                    return f"{key} does not exist any more"
            except ClusterError as error:
                log.info("%s: not read again before its gates are lifted: %s", key, error)
        state = self._gangs.state(key)
        if state.problem or state.uid != decided.uid:
            return state.problem or f"{state.key} was created again"
        count = sum(pod.metadata.uid in uids for pod in state.pending)
        return f"of the members placed, {count} of the {state.least} needed are left" if count < state.least else ""

    def _refuse(
        self,
        found: GangAssessment,
        pod: Pod,
        refusal: GangUnschedulable,
        now: float,
        *,
        signature: bytes,
        refused_at: float | None,
    ) -> None:
        """Queue a gang that found no room."""
        state = found.state
        by_key = {member.request.pod.key: member.request.pod for member in found.ready}
        self.notices.tell(state.key, pod, messages.gang_refused(state, refusal), now)
        if refused_at is not None:
            self._metrics.refused(refusal.refusal.reasons, error=bool(refusal.refusal.error))
        until = self._end_of_hold(found, refusal.message, now)
        self._lift_others(found)
        overrun = refusal.refusal.overrun
        if overrun is not None:
            self._queue.wait(pod.key, min(until, overrun.until))
            return
        seen = FOREVER if refusal.refusal.keeps_gate else self._let_see(found, now)
        ends = min((self._refusals.next_end(member.metadata.uid, now) for member in by_key.values()), default=FOREVER)
        is_uniform = len({member.signature for member in found.ready}) == 1 and not found.topology
        self._queue.no_room(
            pod.key,
            signature,
            min(until, seen, ends),
            refused_at=refused_at,
            helps=helpful(refusal.refusal) if is_uniform else ~Change.NOTHING,
            review=self._settings.queueing.reconsider,
        )


def _drivers_of(answer: GangDecision) -> set[str]:
    found: set[str] = set()
    for _, decision in answer.placed:
        found |= drivers_of(decision)
    return found
