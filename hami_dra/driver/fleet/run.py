"""A simulated fleet: Node objects and ResourceSlices on a cluster, as specified by a fleet file.

Used by the demo, `make cluster`, the bench, tests and `hami-dra slices --fleet --publish`. In: a
FleetFile and a Cluster. Out: the nodes and slices, kept up to date: restored when they vanish,
removed when the file shrinks. Their content is decided by `nodes` and `publisher`.

Deliberate changes by others stay: cordons, NotReady, changed resources. The fleet writes labels and
resources of a node only when it begins and when the file changes, taints only when it creates the
node. It never touches a node without its own label. Heartbeats and pods are not simulated here: the
embedded cluster needs none, and on a real one kwok does both.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec.structs import replace

from hami_dra.api import names
from hami_dra.api.config import FleetFile
from hami_dra.api.core import Node
from hami_dra.api.errors import ConfigError
from hami_dra.api.kinds import NODE
from hami_dra.api.resource import ResourceSlice
from hami_dra.driver.fence import QUIET, Fence, FenceMode
from hami_dra.driver.fleet.nodes import PlannedNode, planned_nodes
from hami_dra.driver.publisher import NotPublished, PoolKey, Publisher
from hami_dra.driver.slices import fenced
from hami_dra.driver.taints import is_fenced
from hami_dra.driver.workqueue import WorkQueue
from hami_dra.kube.protocol import AlreadyExists, Cluster, ClusterError, NotFound
from hami_dra.kube.reflector import Reflector

log = logging.getLogger(__name__)

_PARALLEL: Final = 8
_READY: Final = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "a node of a simulated fleet"}


class Fleet:
    """Keep a fleet on a cluster: `run()` until cancelled, or `sync_once()`. Raises ConfigError for an invalid file."""

    def __init__(
        self,
        cluster: Cluster,
        file: FleetFile,
        *,
        fence: FenceMode = "auto",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.problems: dict[str, str] = {}
        """Nodes that differ from the file, with the reason."""
        self._cluster = cluster
        self._file = file
        self._planned = planned_nodes(file)
        self._written: dict[str, PlannedNode] = {}
        self._pools: dict[str, set[PoolKey]] = {}
        self._fence = Fence(cluster, fence)
        self._sleep = sleep
        self._reflector = Reflector(cluster, NODE, self, sleep=sleep)
        self._publisher = Publisher(cluster, owns=self._owns, sleep=sleep, on_rewound=self._reflector.list_again)
        self._queue: WorkQueue[str] = WorkQueue(self._sync_node, workers=_PARALLEL, sleep=sleep)

    def update(self, file: FleetFile) -> None:
        """Switch to another version of the file. Raises ConfigError, and then keeps the old one."""
        if file.name != self._file.name:
            # nodes and slices carry the name: those of the old one would never be removed
            raise ConfigError(
                f"name: the fleet is {self._file.name!r}, not {file.name!r}: keep the name, or start again"
            )
        planned = planned_nodes(file)
        before, self._planned, self._file = self._planned, planned, file
        for name in [*before, *planned]:
            self._queue.add(name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._publisher.run())
            await self._reflector.wait_synced()
            await self._publisher.reflector.wait_synced()
            await self._fence.refresh_until_it_succeeds(self._sleep)
            tasks.create_task(self._queue.run())
            tasks.create_task(self._follow_fence())

    async def sync_once(self) -> None:
        """Write all nodes and slices once. Raises NotPublished, after everything was tried."""
        try:
            await self._reflector.relist()
            await self._publisher.reflector.relist()
            await self._fence.refresh()
        except ClusterError as error:
            raise NotPublished(str(error)) from error
        failures: list[str] = []
        turns = asyncio.Semaphore(_PARALLEL)

        async def sync(name: str) -> None:
            async with turns:
                try:
                    await self._sync_node(name)
                except ClusterError as error:
                    failures.append(f"node {name}: {error}")

        stale = [node.metadata.name for node in self._reflector.store if self._is_ours(node)]
        await asyncio.gather(*(sync(name) for name in dict.fromkeys([*self._planned, *self._pools, *stale])))
        failures += [f"node {name}: {problem}" for name, problem in self.problems.items()]
        try:
            await self._publisher.sync_once()
        except NotPublished as error:
            failures.append(str(error))
        if failures:
            raise NotPublished("; ".join(failures))

    # --- called by the reflector ------------------------------------------------------------------

    def changed(self, old: Node | None, new: Node | None) -> None:
        for node in (old, new):
            if node is not None and (node.metadata.name in self._planned or self._is_ours(node)):
                self._queue.add(node.metadata.name)

    def synced(self) -> None:
        self._requeue()

    def _requeue(self) -> None:
        for name in self._planned:
            self._queue.add(name)

    # --- one node ---------------------------------------------------------------------------------

    async def _sync_node(self, name: str) -> None:
        planned = self._planned.get(name)
        node = self._reflector.store.get(name)
        self.problems.pop(name, None)
        if planned is None:
            await self._remove(name, node)
            return
        if self._file.create_nodes:
            if node is None or (self._is_ours(node) and self._written.get(name) != planned):
                node = await self._write(planned, node)
            if not self._is_ours(node):
                self.problems[name] = (
                    "it exists and does not belong to this fleet: give the nodes of the fleet another name"
                )
                node = None
        if node is None:
            self._keep_pools(name, set())
        else:
            self._want_pools(planned, node)

    async def _write(self, planned: PlannedNode, node: Node | None) -> Node:
        """Create the node or update it; return a node of that name that belongs to others unchanged."""
        if node is None:
            try:
                node = await self._cluster.create(NODE, planned.body)
            except AlreadyExists:
                node = await self._cluster.get(NODE, planned.name)
                if not self._is_ours(node):
                    return node
        else:
            node = await self._cluster.patch(NODE, planned.name, {"metadata": planned.body["metadata"]})
        status: dict[str, Any] = {"capacity": planned.resources, "allocatable": planned.resources}
        if not any(condition.type == "Ready" for condition in node.status.conditions):
            status["conditions"] = [_READY]
        node = await self._cluster.patch(NODE, planned.name, {"status": status}, subresource="status")
        self._written[planned.name] = planned
        self._reflector.observe(node)
        return node

    async def _remove(self, name: str, node: Node | None) -> None:
        self._written.pop(name, None)
        self._keep_pools(name, set())
        if node is None or not self._is_ours(node):
            return
        try:
            await self._cluster.delete(NODE, name, uid=node.metadata.uid)
        except NotFound:
            log.debug("node %s was already deleted", name)

    def _want_pools(self, planned: PlannedNode, node: Node) -> None:
        keys = set()
        for pool in planned.pools:
            key = PoolKey(pool.driver, pool.name)
            keys.add(key)
            fence = self._fence.in_slices(pool.driver, tainted=is_fenced(self._publisher.published(key)))
            self._publisher.want(fenced(replace(pool, node_uid=node.metadata.uid), fence=fence))
        self._keep_pools(planned.name, keys)

    def _keep_pools(self, node: str, keys: set[PoolKey]) -> None:
        for key in self._pools.pop(node, set()) - keys:
            self._publisher.drop(key)
        if keys:
            self._pools[node] = keys

    def _owns(self, item: ResourceSlice) -> bool:
        """Return whether a slice may be deleted.

        It carries the fleet's label, and its pool is not in the file, published or not yet.
        """
        planned = self._planned.get(item.spec.node_name or "")
        return item.metadata.labels.get(names.FLEET_LABEL) == self._file.name and (
            planned is None or all(pool.driver != item.spec.driver for pool in planned.pools)
        )

    def _is_ours(self, node: Node) -> bool:
        return node.metadata.labels.get(names.FLEET_LABEL) == self._file.name

    # --- fence ------------------------------------------------------------------------------------

    async def _follow_fence(self) -> None:
        """Poll the fence: an upgrade may bring DeviceTaintRules while the fleet runs."""
        while True:
            await self._sleep(QUIET)
            await self._fence.refresh_until_it_succeeds(self._sleep)
            self._requeue()
