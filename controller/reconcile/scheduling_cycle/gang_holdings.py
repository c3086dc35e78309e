"""What the waiting members of a gang hold while the gang is not being committed, and for how long.

A member has devices and no node yet when a leader died between two writes, when kube-scheduler
refused another member, or when a member was deleted. While no member runs, everything is released
at once, and the gang is decided again as a whole. Once some run, the devices of the others are kept
for `--gang-hold`: the missing members may be placed near them, and kube-scheduler may bind the
others at any moment. Members that run are never touched.
"""

import asyncio
import logging
from collections.abc import Collection

from controller.gangs import GangKey, GangState
from controller.reconcile.binding import is_of_group
from controller.reconcile.queueing import FOREVER, GangQueue
from controller.reconcile.runtime import Context
from controller.reconcile.scheduling_cycle.collaborators import Acting
from hami_dra.api.core import Pod
from hami_dra.api.podstate import has_our_gate, is_bound

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Members that are released at a time."""
_TRY_AGAIN = 5.0
"""Seconds until what could not be released is released again."""


class GangHoldings:
    def __init__(self, context: Context, acting: Acting, members: GangQueue) -> None:
        self._informers = context.informers
        self._clock = context.clock
        self._metrics = context.metrics
        self._guard = context.guard("gangs")
        self._hold = context.settings.queueing.gang_hold
        self._acting = acting
        self._members = members
        self._releasing: set[GangKey] = set()

    def is_releasing(self, key: GangKey) -> bool:
        return key in self._releasing

    def end(
        self,
        group: asyncio.TaskGroup,
        state: GangState,
        why: str,
        now: float,
        *,
        passing: bool = False,
        about_to_run: Collection[Pod] = (),
    ) -> float:
        """Release what waiting members hold, or return until when it is kept for them.

        `passing`: the gang can continue by itself, so it may keep what it has for a while.
        `about_to_run`: they keep theirs.
        """
        runs = {pod.metadata.uid for pod in about_to_run}
        holding = [pod for pod in state.pending if pod.metadata.uid not in runs and self._holds(pod)]
        remembered = self._members.remembered(state.key)
        if not holding:
            remembered.held_until = None
            return FOREVER
        if state.bound or passing:
            if remembered.held_until is None:
                remembered.held_until = now + self._hold
            if now < remembered.held_until:
                return remembered.held_until
        remembered.held_until = None
        self._releasing.add(state.key)
        self._metrics.gang_releases.inc()
        log.info("%s: %d waiting members are released: %s", state.key, len(holding), why)
        work = self._guard.run(str(state.key), self._release(state.key, holding, why))
        group.create_task(work, name=f"release {state.key}")
        return FOREVER

    async def _release(self, key: GangKey, pods: list[Pod], why: str) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def release(pod: Pod) -> None:
            async with turns:
                await self._acting.deallocator.release(pod, f"{key} waits: {why}", cause="gang")

        try:
            await asyncio.gather(*map(release, pods))
            if any(self._holds(current) for pod in pods if (current := self._informers.pod(pod.key)) is not None):
                await self._clock.sleep(_TRY_AGAIN)
        finally:
            self._releasing.discard(key)
            self._members.wake(key)

    def _holds(self, pod: Pod) -> bool:
        """Return whether the pod, which has no node yet, alone holds devices or room on a node."""
        for claim in self._informers.claims_of(pod):
            if claim.status.allocation is None or not self._acting.claims.is_ours(claim):
                continue
            users = claim.status.reserved_for
            if all(consumer.uid == pod.metadata.uid for consumer in users):
                return True
            if all(is_of_group(consumer, pod) for consumer in users):
                return not any(map(is_bound, self._informers.pods_of(claim.key)))
        return bool(pod.status.nominated_node_name) and has_our_gate(pod)
