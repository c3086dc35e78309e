"""Takes our scheduling gate off pods, in the background, as often as it takes. Nobody waits for it.

Called by the placer (allocated, not ours, no room), for every pod that still carries the gate in native mode, and by
uninstall. The patch removes our gate and nothing else; a pod that is gone, or has no such gate any more, is done.
"""

import asyncio
import logging

from controller.reconcile import bodies
from controller.reconcile.clock import Clock
from controller.reconcile.context import Context
from controller.reconcile.pods import has_our_gate
from controller.reconcile.writer import Writer
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.cluster.backoff import Backoff
from hami_dra.cluster.protocol import Cluster, ClusterError, Conflict, Forbidden, NotFound

log = logging.getLogger(__name__)

_AT_ONCE = 8
"""Gates that are lifted side by side. Thousands of pods may find no room at the same time; commits must not wait for them."""


async def take_off(
    cluster: Cluster, writer: Writer, clock: Clock, pod: Pod, *, attempts: int | None = None
) -> Pod | None:
    """The pod as it is without the gate, or None when it was off or the pod gone before. Raises LeadershipLost.

    `attempts`: how many writes may fail before the last ClusterError is raised; None: as many as it takes.
    """
    backoff = Backoff()
    conflicts = failures = 0
    current: Pod | None = pod
    while current is not None and current.metadata.uid == pod.metadata.uid and has_our_gate(current):
        meta = current.metadata
        try:
            patch = bodies.lift_gate(current)
            return await writer.patch(kinds.POD, meta.name, patch, namespace=meta.namespace)
        except NotFound:
            return None
        except Conflict:
            # somebody else changed the pod: read it again, at once the first time
            if conflicts:
                await clock.sleep(backoff.next())
            conflicts += 1
            current = await _read(cluster, current)
        except ClusterError as error:
            failures += 1
            if failures == attempts:
                raise
            level = logging.WARNING if isinstance(error, Forbidden) else logging.INFO
            log.log(level, "gate of pod %s not lifted yet: %s", pod.key, error)
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


class GateKeeper:
    """Gates of pods that were placed go at once; all others go in turn, a few at a time, and hold up no commit."""

    def __init__(self, context: Context) -> None:
        self._cluster = context.cluster
        self._writer = context.writer
        self._world = context.world
        self._clock = context.clock
        self._metrics = context.metrics
        self._guard = context.guard("gates")
        self._busy: set[str] = set()
        self._in_line: set[str] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def lift_in_turn(self, pod: Pod, why: str) -> None:
        """As `lift`, when it is the pod's turn."""
        uid = pod.metadata.uid
        if uid in self._in_line:
            return
        self._in_line.add(uid)
        try:
            async with self._turns:
                await self.lift(pod, why)
        finally:
            self._in_line.discard(uid)

    async def lift(self, pod: Pod, why: str) -> None:
        """Returns when the gate is off or the pod is gone. Raises LeadershipLost."""
        uid = pod.metadata.uid
        if uid in self._busy:
            return
        self._busy.add(uid)
        try:
            with self._guard.each(pod.key):
                await self._lift(pod, why)
        finally:
            self._busy.discard(uid)

    async def _lift(self, pod: Pod, why: str) -> None:
        result = await take_off(self._cluster, self._writer, self._clock, pod)
        if result is not None:
            self._metrics.gates_lifted.inc()
            log.debug("gate of pod %s lifted: %s", pod.key, why)
            self._world.observe_pod(result)

    async def lift_all(self, why: str) -> None:
        """Every gate that is there or turns up, until cancelled."""
        async with asyncio.TaskGroup() as group:

            def seen(_old: Pod | None, new: Pod | None) -> None:
                if new is not None and has_our_gate(new):
                    group.create_task(self.lift_in_turn(new, why))

            end = self._world.pods.subscribe(seen)
            try:
                for pod in list(self._world.pods.store):
                    with self._guard.each(pod.key):
                        seen(None, pod)
                await asyncio.Event().wait()
            finally:
                end()
