"""The path of all writes of the controller that matter.

Before each write it checks that this process still leads (by the monotonic clock). No write lasts
longer than the write timeout, which the next leader waits for. Reads and events do not need it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.protocol import Cluster, Unavailable

T = TypeVar("T", bound=Object)
R = TypeVar("R")


class LeadershipLost(Exception):
    """This process may no longer write: stop, drop all plans, start again as a standby."""


class Writer:
    def __init__(self, cluster: Cluster, may_write: Callable[[], bool], timeout: float) -> None:
        self._cluster = cluster
        self._may_write = may_write
        self._timeout = timeout

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Patch an object. Raises ClusterError (`Unavailable` also on a timeout) and `LeadershipLost`."""
        return await self._guarded(
            f"patch {kind.plural} {name}",
            lambda: self._cluster.patch(kind, name, patch, namespace=namespace, subresource=subresource),
        )

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        return await self._guarded(
            f"create {kind.plural}", lambda: self._cluster.create(kind, body, namespace=namespace)
        )

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        await self._guarded(
            f"delete {kind.plural} {name}",
            lambda: self._cluster.delete(kind, name, namespace=namespace, uid=uid, resource_version=resource_version),
        )

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Evict the pod of this UID. Raises as `Cluster.evict`, and `LeadershipLost`."""
        await self._guarded(f"evict pod {name}", lambda: self._cluster.evict(name, namespace, uid=uid))

    async def _guarded(self, what: str, write: Callable[[], Awaitable[R]]) -> R:
        if not self._may_write():
            raise LeadershipLost(f"{what}: this process does not lead any more")
        try:
            async with asyncio.timeout(self._timeout):
                return await write()
        except TimeoutError as error:
            raise Unavailable(f"{what}: no answer within {self._timeout:g} s") from error
