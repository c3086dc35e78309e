"""What follows a decision: assume it, write it in the background, then tell, lift the gate, or begin again.

Called by the placer. Between `start` and the end of the commit the result counts in the inventory as assumed and its claims
are `busy`: nobody else decides on them. The end is one of: written; stale (decided again, with growing pauses); rejected by
the API server (told, tried again rarely).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.decide import Decision, Demand
from controller.reconcile import messages
from controller.reconcile.claims import Rejected, Stale
from controller.reconcile.commit import Committer
from controller.reconcile.context import Context
from controller.reconcile.gate import GateKeeper
from controller.reconcile.pods import has_our_gate, is_live, is_pending
from controller.reconcile.queue import Queue
from controller.reconcile.triggers import rank
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD

log = logging.getLogger(__name__)


@dataclass(slots=True)
class InFlight:
    """What is being written right now. Shared with those who must keep off it."""

    pods: dict[str, str] = field(default_factory=dict)
    """Key -> uid."""
    claims: set[str] = field(default_factory=set)
    """Uids."""


class Aftermath:
    def __init__(
        self,
        context: Context,
        *,
        committer: Committer,
        gate: GateKeeper,
        queue: Queue,
        in_flight: InFlight,
        wake: Callable[[], None],
        made_room: Callable[[], None],
    ) -> None:
        self._world = context.world
        self._inventory = context.inventory
        self._settings = context.settings
        self._clock = context.clock
        self._events = context.events
        self._metrics = context.metrics
        self._guard = context.guard("commit")
        self._committer = committer
        self._gate = gate
        self._queue = queue
        self._in_flight = in_flight
        self._wake = wake
        self._made_room = made_room
        context.events.yield_to(lambda: bool(in_flight.pods))
        self._slots = asyncio.Semaphore(context.settings.commits_at_once)
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def is_committing(self, pod_key: str) -> bool:
        return pod_key in self._in_flight.pods

    async def wait_for_slot(self) -> None:
        """Until one more commit may be started."""
        async with self._slots:
            return

    def start(self, group: asyncio.TaskGroup, pod: Pod, demand: Demand, decision: Decision) -> None:
        self._in_flight.pods[pod.key] = pod.metadata.uid
        for entry in decision.allocations:
            self._in_flight.claims.add(entry.claim.metadata.uid)
            self._inventory.assume(entry.claim.metadata.uid, entry.allocation)
        self._inventory.assume_pod(pod, decision.node)
        finish = self._guard.run(pod.key, self._finish(pod, demand, decision))
        group.create_task(finish, name=f"commit {pod.key}")

    def abandon(self) -> None:
        """The term is over: what is still being written is nobody's assumption any more."""
        for uid in self._in_flight.claims:
            self._inventory.forget(uid)
        for uid in self._in_flight.pods.values():
            self._inventory.forget_pod(uid)
        self._events.yield_to(lambda: False)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscribed by the term: what is gone needs no pause any more."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._failures.pop(old.metadata.uid, None)
            self._not_before.pop(old.metadata.uid, None)

    async def _finish(self, pod: Pod, demand: Demand, decision: Decision) -> None:
        async with self._slots:
            started = self._clock.monotonic()
            try:
                current = await self._committer.commit(pod, decision)
            except Stale as error:
                self._end(pod, demand, decision, written=False)
                self._metrics.commits.labels("stale").inc()
                log.info("pod %s: decided again: %s", pod.key, error)
                self._again(pod, self._pause(pod))
                return
            except Rejected as error:
                self._end(pod, demand, decision, written=False)
                self._metrics.commits.labels("refused").inc()
                log.warning("pod %s: the API server refuses the allocation: %s", pod.key, error)
                self._events.tell(POD, pod, messages.warning(messages.BINDING_FAILED, str(error)))
                self._again(pod, self._settings.retry_most)
                return
            except Exception as error:
                if not self._guard.contains(pod.key, error):
                    raise
                self._end(pod, demand, decision, written=False)
                self._metrics.commits.labels("refused").inc()
                note = f"internal error, see the controller's log: {error!r}"
                self._events.tell(POD, pod, messages.warning(messages.BINDING_FAILED, note))
                self._again(pod, self._settings.retry_most)
                return
            self._end(pod, demand, decision, written=True)
            self._failures.pop(pod.metadata.uid, None)
            self._not_before.pop(pod.metadata.uid, None)
            self._metrics.commits.labels("done").inc()
            self._metrics.commit_seconds.observe(self._clock.monotonic() - started)
            self._events.tell(POD, pod, messages.placed(decision))
            if has_our_gate(current):
                await self._gate.lift(current, "allocated")

    def _end(self, pod: Pod, demand: Demand, decision: Decision, *, written: bool) -> None:
        """The claims as written are in the world already: what was assumed is known now, one way or the other."""
        for entry in decision.allocations:
            uid = entry.claim.metadata.uid
            self._in_flight.claims.discard(uid)
            if written:
                self._inventory.confirm(uid)
            else:
                self._inventory.forget(uid)
        self._in_flight.pods.pop(pod.key, None)
        if not written:
            self._inventory.forget_pod(pod.metadata.uid)
            self._made_room()  # others may have been refused for what was only assumed
        now = self._clock.monotonic()
        for companion in self._companions(pod, demand):
            # it waited for this; but if it has failed by itself too, it keeps to its own pause
            self._again(companion, self._not_before.get(companion.metadata.uid, now) - now)

    def _companions(self, pod: Pod, demand: Demand) -> Iterable[Pod]:
        """The other pending pods that share a claim with it, by key."""
        if not demand.companions:
            return ()
        found = {other.key: other for entry in demand.claims for other in self._world.pods_of(entry.claim.key)}
        return [found[key] for key in sorted(found) if key != pod.key and is_pending(found[key])]

    def _again(self, pod: Pod, pause: float) -> None:
        current = self._world.pod(pod.key)
        uid = pod.metadata.uid
        if current is None or not is_live(current):
            self._failures.pop(uid, None)
            self._not_before.pop(uid, None)
            return
        self._queue.ready(pod.key, rank(current))
        if pause > 0:
            self._not_before[uid] = self._clock.monotonic() + pause
            self._queue.wait(pod.key, self._not_before[uid])
        self._wake()

    def _pause(self, pod: Pod) -> float:
        """0 the first time, then doubling: most of what is stale is so once."""
        failures = self._failures.get(pod.metadata.uid, 0)
        self._failures[pod.metadata.uid] = failures + 1
        if failures == 0:
            return 0.0
        return min(self._settings.retry_first * float(2 ** min(failures - 1, 20)), self._settings.retry_most)
