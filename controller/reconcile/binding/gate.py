"""Removes our scheduling gate from pods, in the background. No caller waits for it.

Called by the scheduling cycle and after commits (allocated, not ours, unschedulable), for every pod
that still carries the gate in native mode, and by uninstall. The patch removes our gate and nothing
else; a pod that was deleted, or has no such gate any more, is done.

A gate that cannot be removed (because an admission webhook refuses the update, for example) is
retried as long as the pod exists: soon at first, then with pauses that double up to two minutes.
There is no other end, as in Kubernetes' own controllers: the cause of the refusal may disappear at
any time, without an event of the pod. Nothing that others need is held meanwhile, and an event
shows the API server's words to the pod's owner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from msgspec import Struct, field

from controller.reconcile.runtime import Clock, Context, Writer, messages, patches
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.podstate import has_our_gate
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.lanes import Lanes
from hami_dra.kube.protocol import Cluster, ClusterError, Conflict, Forbidden, Invalid, NotFound

log = logging.getLogger(__name__)

_CONFLICTS_MOST: Final = 4
_CONFLICT_PAUSE: Final = 0.05
"""Conflicts of one attempt, and seconds after the second of them; doubles."""
_PLACED_AT_ONCE: Final = 32
_OTHERS_AT_ONCE: Final = 8
"""Concurrent requests for gates in one namespace, for pods with devices and for all others.
Thousands of pods may become unschedulable at the same time; commits must not wait for the API
server because of them.
"""
_PAUSE_FIRST: Final = 0.2
_PAUSE_MOST: Final = 120.0
"""Seconds between attempts: after the first one, and at most; doubles."""
_FAILURES_UNREPORTED: Final = 5
"""Consecutive failures that are not reported; a refusal is reported at once."""


async def take_off(cluster: Cluster, writer: Writer, clock: Clock, pod: Pod, *, attempts: int) -> Pod | None:
    """Return the pod, or None if it has no gate any more. `attempts` may fail. Raises ClusterError, LeadershipLost."""
    backoff = Backoff(_CONFLICT_PAUSE)
    conflicts = failures = 0
    current: Pod | None = pod
    while current is not None and current.metadata.uid == pod.metadata.uid and has_our_gate(current):
        meta = current.metadata
        try:
            patch = patches.lift_gate(current)
            return await writer.patch(kinds.POD, meta.name, patch, namespace=meta.namespace)
        except NotFound:
            return None
        except Conflict:
            # Another client changed the pod: read it again, immediately the first time.
            conflicts += 1
            if conflicts == _CONFLICTS_MOST:
                raise
            if conflicts > 1:
                await clock.sleep(backoff.next())
            current = await _read(cluster, current)
        except ClusterError:
            failures += 1
            if failures == attempts:
                raise
            await clock.sleep(backoff.next())
            current = await _read(cluster, current)
    return None


async def _read(cluster: Cluster, pod: Pod) -> Pod | None:
    try:
        return await cluster.get(kinds.POD, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return None
    except ClusterError:
        return pod


class _PendingGate(Struct):
    """One gate to be removed."""

    pod: Pod
    why: str
    placed: bool
    lane: str
    check: Callable[[], Awaitable[str]] | None
    backoff: Backoff = field(default_factory=lambda: Backoff(_PAUSE_FIRST, _PAUSE_MOST))
    reported: bool = False
    under_way: bool = False


class GateKeeper:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = context.guard("gates")
        self._wanted: dict[str, _PendingGate] = {}
        """By UID of the pod."""
        self._placed = Lanes(_PLACED_AT_ONCE)
        self._others = Lanes(_OTHERS_AT_ONCE)
        self._in_order = Lanes(1)

    def lift(
        self,
        pod: Pod,
        why: str,
        *,
        placed: bool = False,
        lane: str = "",
        check: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Remove the gate in the background. Gates of `placed` pods wait for no others, but for
        those of the same `lane`: these are removed one after the other, in the order of the calls.

        `check`: why it must stay after all, or empty; called before each attempt but the first.
        A gate that could not be removed keeps its pauses.
        """
        uid = pod.metadata.uid
        wanted = self._wanted.get(uid)
        if wanted is None:
            wanted = self._wanted[uid] = _PendingGate(pod, why, placed, lane, check)
        elif placed and (not wanted.placed or check is not None):
            wanted.placed, wanted.lane, wanted.check = True, lane, check
        else:
            return
        if not wanted.backoff.failures:
            self._try(uid, wanted)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Forget a pod that was deleted, or has no gate any more. Subscribed by the term."""
        if old is not None and (new is None or not has_our_gate(new)) and old.metadata.uid in self._wanted:
            self._forget(old.metadata.uid)

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost, in an exception group."""
        async with self._placed, self._others, self._in_order:
            await asyncio.Event().wait()

    def _try(self, uid: str, wanted: _PendingGate, pause: float = 0.0) -> None:
        lanes = self._in_order if wanted.lane else self._placed if wanted.placed else self._others
        lane = wanted.lane or wanted.pod.metadata.namespace
        work = partial(self._attempt, uid)
        if pause > 0:
            lanes.add_later(pause, lane, uid, work)
        else:
            lanes.add(lane, uid, work)

    async def _attempt(self, uid: str) -> None:
        wanted = self._wanted.get(uid)
        if wanted is None or wanted.under_way:
            return
        done, wanted.under_way = False, True
        with self._guard.each(wanted.pod.key):
            done = await self._lift(uid, wanted)
        wanted.under_way = False
        if done:
            self._forget(uid)
        else:
            self._try(uid, wanted, wanted.backoff.next())

    async def _lift(self, uid: str, wanted: _PendingGate) -> bool:
        """Return whether nothing is left to do. Raises LeadershipLost."""
        pod = self._context.informers.pod(wanted.pod.key) or wanted.pod
        if pod.metadata.uid != uid:
            return True
        if wanted.check is not None and wanted.backoff.failures and (problem := await wanted.check()):
            log.info("gate of pod %s stays: %s", pod.key, problem)
            return True
        try:
            result = await take_off(self._context.cluster, self._context.writer, self._context.clock, pod, attempts=1)
        except ClusterError as error:
            self._failed(pod, wanted, error)
            return False
        if result is not None:
            self._context.metrics.gates_lifted.inc()
            log.debug("gate of pod %s lifted: %s", pod.key, wanted.why)
            self._context.informers.observe_pod(result)
        return True

    def _failed(self, pod: Pod, wanted: _PendingGate, error: ClusterError) -> None:
        if isinstance(error, (Forbidden, Invalid)) or wanted.backoff.failures >= _FAILURES_UNREPORTED:
            if not wanted.reported:
                log.warning("gate of pod %s cannot be lifted: %s", pod.key, error)
                self._context.metrics.gates_not_lifted.inc()
            wanted.reported = True
            self._context.events.report(kinds.POD, pod, messages.gate_not_lifted(str(error)), "LiftGate")
        else:
            log.info("gate of pod %s not lifted yet: %s", pod.key, error)

    def _forget(self, uid: str) -> None:
        wanted = self._wanted.pop(uid, None)
        if wanted is not None and wanted.reported:
            self._context.metrics.gates_not_lifted.dec()

    def lift_all(self, why: str) -> Callable[[], None]:
        """Remove every present and future gate. Returns a function that ends this."""

        def seen(_old: Pod | None, new: Pod | None) -> None:
            if new is not None and has_our_gate(new):
                self.lift(new, why)

        for pod in self._context.informers.pods.store:
            with self._guard.each(pod.key):
                seen(None, pod)
        return self._context.informers.pods.subscribe(seen)
