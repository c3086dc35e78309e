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

from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import NODE, POD, WORKLOADS
from hami_dra.api.meta import Object
from hami_dra.kube.embedded.api_server import MemoryCluster
from hami_dra.kube.embedded.claims import ClaimController
from hami_dra.kube.embedded.copies import Copies, consumer_uids
from hami_dra.kube.embedded.scheduler import Scheduler
from hami_dra.kube.embedded.worker import Worker
from hami_dra.kube.embedded.workloads import WorkloadController
from hami_dra.kube.protocol import NotFound
from hami_dra.kube.reflector import Reflector


class Kubelet:
    """Every node's kubelet: a bound pod runs once its claims are allocated and reserved for it, and a
    deleted one ends at once. Pods never finish on their own.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self.worker = Worker("run", self._sync)
        copies.pods.listeners.append(self._pod_changed)
        copies.claims.on_change(lambda claim: self.worker.add_all(copies.pods_of(claim)))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or not new.spec.node_name:
            return
        if old is None or not old.spec.node_name or new.metadata.deletion_timestamp != old.metadata.deletion_timestamp:
            self.worker.add(new.key)

    async def _sync(self, key: str) -> None:
        pod = self._copies.pods.store.get(key)
        if pod is None or not pod.spec.node_name:
            return
        if pod.metadata.deletion_timestamp:
            await self._copies.pods.delete(pod, grace_period_seconds=0)
            return
        if pod.status.phase != "Pending":
            return
        for claim in self._copies.claims_of(pod):
            if claim is None or claim.status.allocation is None or pod.metadata.uid not in consumer_uids(claim):
                return
        cluster, meta = self._copies.cluster, pod.metadata
        raw = await cluster.get_raw(POD, meta.name, meta.namespace)
        now = cluster.timestamp()
        others = [item for item in (raw["status"].get("conditions") or ()) if item.get("type") != "Ready"]
        status = {
            "phase": "Running",
            "startTime": now,
            "conditions": [*others, {"type": "Ready", "status": "True", "lastTransitionTime": now}],
        }
        guard = {"resourceVersion": raw["metadata"]["resourceVersion"], "uid": meta.uid}
        patch = {"metadata": guard, "status": status}
        await self._copies.pods.patch(pod, patch, "status")


class GarbageCollector:
    """Deletes pods on deleted nodes, and pods and claims whose owner no longer exists. Upstream waits a
    while for the former, which would make tests slow.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self.pods = Worker("collect pod", self._sync_pod)
        self.claims = Worker("collect claim", self._sync_claim)
        copies.pods.listeners.append(self._pod_changed)
        copies.claims.on_present(lambda claim: self.claims.add(claim.key))
        copies.nodes.listeners.append(self._node_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and (old is None or old.spec.node_name != new.spec.node_name):
            self.pods.add(new.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is None:
            self.pods.add_all(pod.key for pod in self._copies.pods.store.find("node", old.metadata.name))

    async def _sync_pod(self, key: str) -> None:
        pod = self._copies.pods.store.get(key)
        if pod is None or pod.metadata.deletion_timestamp:
            return
        lost = pod.spec.node_name and not await self._node_exists(pod.spec.node_name)
        if lost or self._is_orphan(pod):
            await self._copies.pods.delete(pod)

    async def _sync_claim(self, key: str) -> None:
        claim = self._copies.claims.store.get(key)
        if claim is not None and claim.metadata.deletion_timestamp is None and self._is_orphan(claim):
            await self._copies.claims.delete(claim)

    async def _node_exists(self, name: str) -> bool:
        try:
            # Not from the copy: the node watch may be behind the pod watch.
            await self._copies.cluster.get(NODE, name)
        except NotFound:
            return False
        return True

    def _is_orphan(self, item: Object) -> bool:
        owners = [owner.uid for owner in item.metadata.owner_references]
        return bool(owners) and not any(self._copies.cluster.knows(uid) for uid in owners)


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
