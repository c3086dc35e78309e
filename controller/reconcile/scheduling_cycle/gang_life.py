"""What only gangs need of the scheduling cycle: members that are awaited, what they hold meanwhile, and
the check of their commit.

A gang is decided once all its members are there and none of them is being written. Before the gates
of a commit are lifted, the gang must still be what was decided on.

A member has devices and no node yet when a leader died between two writes, when kube-scheduler
refused another member, or when a member was deleted. While no member runs, everything is released
at once, and the gang is decided again as a whole. Once some run, the devices of the others are kept
for `--gang-hold`: the missing members may be placed near them, and kube-scheduler may bind the
others at any moment. Members that run are never touched.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from controller.decide import Decision
from controller.gangs import API_GROUPS, GangKey, GangState
from controller.reconcile.binding import is_of_group
from controller.reconcile.queueing import FOREVER, GangQueue, QueuedUnit, WaitingPods
from controller.reconcile.runtime import Context, messages
from controller.reconcile.scheduling_cycle.collaborators import Acting
from controller.reconcile.scheduling_cycle.notices import ARRIVAL, NOTED, Notices
from hami_dra.api.core import Pod
from hami_dra.api.podstate import has_our_gate, is_bound
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.protocol import ClusterError

log = logging.getLogger(__name__)

_SETTLES: Final = 1.0
"""Seconds between two looks at a large gang that lacks members or must be corrected: its pods come
and go one by one, and each look reads all of them.
"""
_RELEASED_AT_ONCE: Final = 8
_TRY_AGAIN: Final = 5.0
"""Seconds until what could not be released is released again."""


@dataclass(eq=False)
class GangLife:
    context: Context
    waiting: WaitingPods
    acting: Acting
    queue: GangQueue
    notices: Notices
    _guard: LoopGuard = field(init=False)
    _releasing: set[GangKey] = field(default_factory=set)
    group: asyncio.TaskGroup = field(init=False)
    """Of the scheduling cycle; set by it."""

    def __post_init__(self) -> None:
        self._guard = self.context.guard("gangs")

    # --- before a decision ------------------------------------------------------------------------

    def complete(self, key: GangKey, pod: Pod, now: float) -> GangState | None:
        """Return the gang for which the pod stands, or None: it cannot be decided yet, and the queue
        knows for how long it waits.
        """
        remembered = self.queue.remembered(key)
        if now < remembered.settles_at and self.context.informers.gangs.cannot_run(key):
            self.waiting.queue.wait(pod.key, remembered.settles_at)
            return None
        remembered.settles_at = now + _SETTLES
        state = self.context.informers.gangs.state(key)
        if self._waits_for_writes(state, pod):
            return None
        if state.problem:
            self._cannot_run(state, pod, messages.invalid_gang(state.problem), now, said_from=now)
            return None
        if state.missing:
            if remembered.incomplete_since is None:
                remembered.incomplete_since = now
            said_from = remembered.incomplete_since + ARRIVAL
            self._cannot_run(state, pod, messages.gang_incomplete(state), now, said_from=said_from)
            return None
        remembered.incomplete_since = None
        return state

    def _waits_for_writes(self, state: GangState, pod: Pod) -> bool:
        """Return whether a member is being written; the gang is evaluated when that has ended."""
        is_releasing, in_flight = state.key in self._releasing, self.waiting.in_flight
        written = [each.metadata.uid for each in state.pending if each.metadata.uid in in_flight]
        if not is_releasing and not written:
            return False
        if not is_releasing:
            in_flight.put_off(written[0], pod.key)
        self.waiting.queue.wait(pod.key)
        return True

    def _cannot_run(
        self, state: GangState, pod: Pod, message: messages.Message, now: float, *, said_from: float
    ) -> None:
        """The gang is not complete, or its group is wrong: it holds nothing and keeps its gates.

        `said_from`: when there is to be an event.
        """
        self.context.metrics.gang_decisions.labels("incomplete").inc()
        self.notices.note(state.pending[:NOTED], message.note)
        self.waiting.timeouts.forget(state.key)
        until = self.end_of_hold(QueuedUnit(pod, state.pending, state), state, message.note, now)
        if now < said_from:
            until = min(until, said_from)
        else:
            self.notices.tell(state.key, pod, message, now)
        self.waiting.queue.wait(pod.key, until)

    def arrived(self, state: GangState, now: float) -> float:
        """Return until when more members may be created. Those that ended well stand in for members
        that do not exist, and the pods of a Job come one after the other.
        """
        waiting, count = self.queue.remembered(state.key), len(state.pending)
        if waiting.arrived[0] != count:
            waiting.arrived = (count, now)
        return waiting.arrived[1] + ARRIVAL if state.stand_ins else now

    # --- what members hold ------------------------------------------------------------------------

    def end_of_hold(self, unit: QueuedUnit, gang: GangState, why: str, now: float, *, passing: bool = False) -> float:
        """Release what the members hold that wait, or return until when it is kept for them.

        `passing`: the gang can continue by itself, so it may keep what it has for a while. If enough
        members have their devices they are about to run, whatever happens to the others.
        """
        about_to_run = set() if unit.least else {each.pod.metadata.uid for each in unit.settled}
        holding = [pod for pod in unit.pods if pod.metadata.uid not in about_to_run and self._holds(pod)]
        remembered = self.queue.remembered(gang.key)
        if not holding:
            remembered.held_until = None
            return FOREVER
        if gang.bound or passing:
            if remembered.held_until is None:
                remembered.held_until = now + self.context.settings.queueing.gang_hold
            if now < remembered.held_until:
                return remembered.held_until
        remembered.held_until = None
        self._releasing.add(gang.key)
        self.context.metrics.gang_releases.inc()
        log.info("%s: %d waiting members are released: %s", gang.key, len(holding), why)
        work = self._guard.run(str(gang.key), self._release(gang.key, holding, why))
        self.group.create_task(work, name=f"release {gang.key}")
        return FOREVER

    async def _release(self, key: GangKey, pods: list[Pod], why: str) -> None:
        turns = asyncio.Semaphore(_RELEASED_AT_ONCE)

        async def release(pod: Pod) -> None:
            async with turns:
                await self.acting.deallocator.release(pod, f"{key} waits: {why}", cause="gang")

        try:
            await asyncio.gather(*map(release, pods))
            present = filter(None, [self.context.informers.pod(pod.key) for pod in pods])
            if any(map(self._holds, present)):
                await self.context.clock.sleep(_TRY_AGAIN)
        finally:
            self._releasing.discard(key)
            self.queue.wake(key)

    def _holds(self, pod: Pod) -> bool:
        """Return whether the pod, which has no node yet, alone holds devices or room on a node."""
        for claim in self.context.informers.claims_of(pod):
            if claim.status.allocation is None or not self.acting.claims.is_ours(claim):
                continue
            users = claim.status.reserved_for
            if all(consumer.uid == pod.metadata.uid for consumer in users):
                return True
            if all(is_of_group(consumer, pod) for consumer in users):
                return not any(map(is_bound, self.context.informers.pods_of(claim.key)))
        return bool(pod.status.nominated_node_name) and has_our_gate(pod)

    # --- the commit -------------------------------------------------------------------------------

    def commit(self, unit: QueuedUnit, state: GangState, placed: Sequence[tuple[Pod, Decision]]) -> None:
        """Start the commit of the members that were placed: one of all, or one of each where enough members run."""
        decided = {pod.metadata.uid for pod, _ in placed}
        holders = decided | {each.pod.metadata.uid for each in unit.settled}
        check = partial(self._check, state, holders, reread=bool(unit.least))
        done = partial(self._committed, state.key, decided)
        for together in [placed] if unit.least else [[each] for each in placed]:
            self.acting.binding_cycle.start_gang(self.group, state.key, together, check=check, done=done)
        self.queue.forget(state.key)

    def _committed(self, key: GangKey, uids: Collection[str]) -> None:
        """Evaluate the gang if members wait that were not committed, including members created since."""
        if any(pod.metadata.uid not in uids for pod in self.context.informers.gangs.state(key).pending):
            self.queue.wake(key)

    async def _check(self, decided: GangState, uids: Collection[str], *, reread: bool) -> str:
        """As `_problem`; the gang is evaluated if there is one."""
        if problem := await self._problem(decided, uids, reread=reread):
            self.queue.wake(decided.key)
        return problem

    async def _problem(self, decided: GangState, uids: Collection[str], *, reread: bool) -> str:
        """Return why the gang must not run after all, or empty. `uids`: members with devices.

        `reread`: the PodGroup is read again, for a minCount that was raised before the last claim
        was written counts, even if the watch has not shown it yet.
        """
        key = decided.key
        if reread and key.source in API_GROUPS:
            try:
                if not await self.context.informers.reread_pod_group(key):
                    return f"{key} does not exist any more"
            except ClusterError as error:
                log.info("%s: not read again before its gates are lifted: %s", key, error)
        state = self.context.informers.gangs.state(key)
        if state.problem or state.uid != decided.uid:
            return state.problem or f"{state.key} was created again"
        count = sum(pod.metadata.uid in uids for pod in state.pending)
        return f"of the members placed, {count} of the {state.least} needed are left" if count < state.least else ""
