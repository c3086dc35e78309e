"""Nominates and evicts for a hold, in the background: first all nominations, then one victim after another.

The nomination keeps kube-scheduler from giving CPU and memory of the node to others, and leads a new
leader to the same node. A victim that cannot be evicted ends the hold, so that no other is
evicted for nothing, and is no victim for a while. What goes as a whole is evicted as a whole, even if
the unit is placed before: half a gang would be left.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from controller.reconcile.preemption.holds import Hold, Holds, Transfer
from controller.reconcile.preemption.notes import moved, preempted
from controller.reconcile.runtime import Context, patches
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import ClusterError, Conflict, Forbidden, Invalid, NotFound, Protected

log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Units of one namespace for which pods are evicted at the same time."""
_ATTEMPTS: Final = 6
"""Of one eviction whose result is not clear."""
_SPARED: Final = 60.0
"""Seconds for which a pod is no victim after its eviction was refused."""
_MINUTE: Final = 60.0


class Evictor:
    """`give_up`: called with a hold of which one victim stays, and why; `again`, when its eviction may be tried again;
    `set_out`, before a pod moves: returns why it must not any more, or until when it must have arrived; `late`, then.
    """

    def __init__(
        self,
        context: Context,
        holds: Holds,
        *,
        give_up: Callable[[Hold, str], None],
        again: Callable[[], None],
        set_out: Callable[[Transfer], str | float],
        late: Callable[[Transfer], None],
    ) -> None:
        self._context = context
        self._holds = holds
        self._give_up = give_up
        self._again = again
        self._set_out = set_out
        self._late = late
        self._guard = context.guard("evictions")
        self._lanes = Lanes(_AT_ONCE)
        self._refused: dict[str, tuple[float, str]] = {}
        """UID → until when it is no victim, and why."""
        self._asked: deque[float] = deque()
        """When each victim of the last minute was chosen."""

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost, in an exception group."""
        async with self._lanes:
            await asyncio.Event().wait()

    def refused(self) -> dict[str, str]:
        """Return the pods, by UID, that were not evicted a short while ago, and why."""
        now = self._context.clock.monotonic()
        self._refused = {uid: kept for uid, kept in self._refused.items() if kept[0] > now}
        return {uid: why for uid, (_, why) in self._refused.items()}

    def free_at(self, victims: int) -> float | None:
        """Return when this number of pods may be evicted at the earliest; None: now. More than the limit
        may be after a minute without evictions.
        """
        now, most = self._context.clock.monotonic(), self._context.settings.preemption.evictions_per_minute
        while self._asked and self._asked[0] + _MINUTE <= now:
            self._asked.popleft()
        over = len(self._asked) + victims - most
        return self._asked[min(over, len(self._asked)) - 1] + _MINUTE if over > 0 and self._asked else None

    def begin(self, hold: Hold) -> None:
        self._asked.extend([self._context.clock.monotonic()] * len(hold.victims))
        self.carry_out(hold)
        self._watch(hold)

    def carry_out(self, hold: Hold) -> None:
        """Write the nominations that are not as the hold is now, and evict the victims that were not."""
        self._lanes.add(hold.namespace, hold.key, partial(self._carry_out, hold))

    def withdraw(self, hold: Hold) -> None:
        """Take the nominations back, unless the unit has another place by then."""
        self._lanes.add(hold.namespace, hold.key, partial(self._take_back, hold))

    def _watch(self, hold: Hold) -> None:
        """Give the hold up when its unit was not evaluated in time: it cannot be decided any more."""
        rest = hold.until + _MINUTE - self._context.clock.monotonic()
        self._lanes.add_later(max(rest, 0.0), hold.namespace, ("watch", hold.key), partial(self._expire, hold))

    async def _expire(self, hold: Hold) -> None:
        if not self._is_current(hold):
            return
        if self._context.clock.monotonic() < hold.until + _MINUTE:
            self._watch(hold)
        else:
            self._give_up(hold, "its unit cannot be decided now")

    async def _carry_out(self, hold: Hold) -> None:
        with self._guard.each(hold.pods[0].key):
            for request, decision in hold.placed:
                if self._is_current(hold) and hold.slot is None:
                    await self._nominate(request.pod, decision.node)
            for together in hold.together:
                for victim in together:
                    if not self._is_needed(hold, together) or not hold.is_turn(victim):
                        return
                    if problem := self._may_not_move(hold, victim) or await self._evict(hold, victim, together):
                        self._spare(hold, victim, problem)
                        return

    def _may_not_move(self, hold: Hold, victim: Pod) -> str:
        """Return why the pod must not move any more, or empty: it sets out, or does not move."""
        transfer = hold.transfer(victim)
        if transfer is None or transfer.is_begun:
            return ""
        if isinstance(until := self._set_out(transfer), str):
            return until
        transfer.until = until

        rest = until - self._context.clock.monotonic()
        self.later(rest, partial(self._late, transfer), f"arrives/{victim.metadata.uid}")
        return ""

    def _spare(self, hold: Hold, victim: Pod, problem: str) -> None:
        self._refused[victim.metadata.uid] = self._context.clock.monotonic() + _SPARED, problem
        self._give_up(hold, f"pod {victim.key} was not evicted: {problem}")

        self.later(_SPARED, self._again, victim.metadata.uid)

    def later(self, seconds: float, work: Callable[[], None], key: str = "") -> None:
        """Call it after a pause; of one key the last call counts."""

        async def do() -> None:
            work()

        self._lanes.add_later(seconds, "", key, do)

    async def _take_back(self, hold: Hold) -> None:
        with self._guard.each(hold.pods[0].key):
            for pod in hold.pods:
                current = self._context.informers.present(pod)
                nominated = current.status.nominated_node_name if current is not None else ""
                if current is None or nominated not in hold.nodes or self._holds.of(hold.key) is not None:
                    continue
                if not current.spec.node_name:
                    await self._patch(current, patches.withdraw_nomination(current))

    async def _nominate(self, pod: Pod, node: str) -> None:
        current = self._context.informers.present(pod)
        if current is not None and current.status.nominated_node_name != node:
            await self._patch(current, patches.nominate(current, node))

    async def _patch(self, pod: Pod, patch: patches.Json) -> None:
        """Patch the status of the pod, if it can be: the hold does not depend on it."""
        meta = pod.metadata
        try:
            result = await self._context.writer.patch(
                kinds.POD, meta.name, patch, namespace=meta.namespace, subresource="status"
            )
        except ClusterError as error:
            log.info("pod %s: its nomination is not written: %s", pod.key, error)
        else:
            self._context.informers.observe_pod(result)

    async def _evict(self, hold: Hold, victim: Pod, together: Collection[Pod]) -> str:
        """Evict a pod. Returns why it stays, or empty."""
        backoff = Backoff()
        while victim.metadata.uid not in hold.evicted and self._is_needed(hold, together):
            try:
                await self._ask(victim, moves=bool(hold.transfers))
            except NotFound:
                return ""
            except ClusterError as error:
                refused = isinstance(error, (Protected, Invalid, Forbidden))
                if refused and not (hold.transfers and hold.evicted and isinstance(error, Protected)):
                    # it may have been accepted before, without an answer
                    if not backoff.failures and (transfer := hold.transfer(victim)) is not None:
                        transfer.until = math.inf
                    return str(error)
                if isinstance(error, Conflict) and await self._is_gone(victim):
                    return ""
                if backoff.failures + 1 == _ATTEMPTS:
                    return str(error)
                await self._context.clock.sleep(backoff.next())
            else:
                hold.evicted[victim.metadata.uid] = self._context.clock.wall().timestamp()
                self._context.metrics.evictions.inc()
                log.info("pod %s evicted for pod %s on %s", victim.key, hold.pods[0].key, victim.spec.node_name)
                transfer = hold.transfer(victim)
                message = (
                    moved(hold.pods[0], victim, transfer.decision.node)
                    if transfer is not None
                    else preempted(hold.pods[0], victim, hold.reclaims)
                )
                self._context.events.report(kinds.POD, victim, message, "Preempt")
                return ""
        return ""

    async def _is_gone(self, victim: Pod) -> bool:
        """Return whether there is no such pod any more, or only another one of its name."""
        meta = victim.metadata
        try:
            found = await self._context.cluster.get(kinds.POD, meta.name, meta.namespace)
        except NotFound:
            return True
        except ClusterError:
            return False
        return found.metadata.uid != meta.uid or found.metadata.deletion_timestamp is not None

    async def _ask(self, victim: Pod, *, moves: bool) -> None:
        meta, writer = victim.metadata, self._context.writer
        try:
            await writer.evict(meta.name, meta.namespace, uid=meta.uid)
        except (Protected, Invalid):
            if moves or not self._context.settings.preemption.preemption_pdb:
                raise
            await writer.delete(kinds.POD, meta.name, namespace=meta.namespace, uid=meta.uid)

    def _is_needed(self, hold: Hold, together: Collection[Pod]) -> bool:
        return self._is_current(hold) or any(pod.metadata.uid in hold.evicted for pod in together)

    def _is_current(self, hold: Hold) -> bool:
        return self._holds.of(hold.key) is hold
