"""The parts of Kubernetes that a memory cluster lacks, run next to it.

    async with EmbeddedControlPlane(cluster) as plane:
        await cluster.create(DEPLOYMENT, ...)
        await plane.settled()

Called by the demo and by tests. Deterministic: no timers, no threads; all work is triggered by
watch events.
"""

import asyncio
from types import TracebackType
from typing import Any, Self

from hami_dra.api.kinds import WORKLOADS
from hami_dra.kube.embedded.api_server import MemoryCluster
from hami_dra.kube.embedded.claims import ClaimController
from hami_dra.kube.embedded.copies import Copies
from hami_dra.kube.embedded.garbage import GarbageCollector
from hami_dra.kube.embedded.kubelet import Kubelet
from hami_dra.kube.embedded.scheduler import Scheduler
from hami_dra.kube.embedded.workloads import WorkloadController
from hami_dra.kube.reflector import Reflector

_QUIET_ROUNDS = 20
"""A request takes a few iterations of the event loop; this many without work mean that none is in progress."""


class EmbeddedControlPlane:
    """The controllers, the kubelets and the scheduler. `scheduler=False`: pods are not bound."""

    def __init__(self, cluster: MemoryCluster, *, scheduler: bool = True) -> None:
        self._cluster = cluster
        copies = Copies.of(cluster)
        claims = ClaimController(copies)
        workloads = [WorkloadController(copies, kind) for kind in WORKLOADS]
        garbage = GarbageCollector(copies)
        self._workers = [
            claims.pods,
            claims.claims,
            *(controller.worker for controller in workloads),
            *([Scheduler(copies, claims).worker] if scheduler else []),
            Kubelet(copies).worker,
            garbage.pods,
            garbage.claims,
        ]
        self._reflectors: list[Reflector[Any]] = [
            *copies.reflectors(),
            *(controller.watched.reflector for controller in workloads),
        ]
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until cancelled. An unexpected error ends all of it."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())
            for reflector in self._reflectors:
                await reflector.wait_synced()
            # Start the workers only now: before the copies are in sync, an object could seem
            # deleted.
            for worker in self._workers:
                group.create_task(worker.run())

    @property
    def retrying(self) -> bool:
        """Return whether a retry is pending because the cluster refused or did not answer."""
        return any(worker.retrying for worker in self._workers)

    async def settled(self) -> None:
        """Wait until no event waits for delivery and no worker has anything to do."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            await asyncio.sleep(0)
            if self._running is not None and self._running.done():
                self._running.result()
            working = self._cluster.has_undelivered_events or any(worker.busy for worker in self._workers)
            unsynced = not all(reflector.is_synced for reflector in self._reflectors)
            quiet = 0 if working or unsynced else quiet + 1

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.result()
