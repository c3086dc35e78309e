"""Lists and watches of one kind, by one request where the API server can do both (WatchList).

Used by `reflector.Reflector`, one for each; named after client-go's.
"""

import logging
from collections.abc import AsyncGenerator
from typing import Generic, Protocol, TypeVar, Unpack, runtime_checkable

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.protocol import Broken, Cluster, ClusterError, Listing, NotFound, Scope, WatchEvent

T = TypeVar("T", bound=Object)

log = logging.getLogger(__name__)


@runtime_checkable
class WatchLists(Protocol):
    """What a cluster may offer beyond `Cluster`: a list and the watch after it by one request."""

    async def watch_list(
        self, kind: Kind[T], **scope: Unpack[Scope]
    ) -> tuple[Listing[T], AsyncGenerator[WatchEvent[T] | Broken]]:
        """Return all objects, as new as by a quorum read, and the events after that, to be closed.

        Any ClusterError but NotFound says no more than that this way is barred, for now or for good:
        use `list` and `watch`.
        """


class ListerWatcher(Generic[T]):
    """`scope`: the objects of the kind that are listed and watched."""

    def __init__(self, cluster: Cluster, kind: Kind[T], scope: Scope) -> None:
        self._cluster = cluster
        self._kind = kind
        self._scope = scope
        self._opened: AsyncGenerator[WatchEvent[T] | Broken] | None = None
        """The watch that goes on from the latest `begin`."""

    async def begin(self) -> Listing[T]:
        """Return all objects, to be followed by `watch`. Raises ClusterError."""
        if isinstance(self._cluster, WatchLists):
            try:
                listing, self._opened = await self._cluster.watch_list(self._kind, **self._scope)
            except NotFound:
                raise
            except ClusterError as error:
                log.debug("%s are listed in pages: %s", self._kind.plural, error)
            else:
                return listing
        return await self.list()

    async def list(self) -> Listing[T]:
        """Return all objects, for a caller whose watch goes on. Raises ClusterError."""
        return await self._cluster.list(self._kind, **self._scope)

    def watch(self, version: int) -> AsyncGenerator[WatchEvent[T] | Broken]:
        """Return the events after `version`, to be closed by the caller."""
        opened, self._opened = self._opened, None
        return opened or self._cluster.watch(self._kind, resource_version=str(version), **self._scope)

    async def version(self) -> int:
        """Return the version that `list` would have now, by a read of a few bytes. Raises ClusterError."""
        return int(await self._cluster.resource_version(self._kind, **self._scope))

    async def close(self) -> None:
        """Close the watch that was begun and not asked for."""
        if self._opened is not None:
            await self._opened.aclose()
            self._opened = None
