"""Claims that hold devices of this node, for the order of devices in native mode.

Created by `service` in native mode only. In: a watch of all claims, because the API server cannot
select them by node. Out: `held`, and `on_change` when one of them appears, disappears or changes.
Claims of other nodes are read and discarded.
"""

from collections.abc import Callable, Collection

from hami_dra.api.kinds import RESOURCE_CLAIM
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.guard import LoopGuard, count_nothing
from hami_dra.kube.protocol import Cluster
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.store import Store


class _Selected(Store[ResourceClaim]):
    """A store that keeps only selected objects; its reflector never sees the others."""

    def __init__(self, selects: Callable[[ResourceClaim], bool]) -> None:
        super().__init__()
        self._selects = selects

    def put(self, new: ResourceClaim, key: str = "") -> None:
        if self._selects(new):
            super().put(new, key)
        else:
            self.remove(new.key)


class HeldClaims:
    """Watch the claims: `reflector.run()` until cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        pool: str,
        drivers: Collection[str],
        on_change: Callable[[], None],
        count: Callable[[str], None] = count_nothing,
    ) -> None:
        """Set up the watch. The pools of this node are named `pool`."""
        self._pool = pool
        self._drivers = frozenset(drivers)
        self._on_change = on_change
        guard = LoopGuard("watch claims", count)
        self.reflector = Reflector(cluster, RESOURCE_CLAIM, self, store=_Selected(self._holds), guard=guard)

    @property
    def held(self) -> Collection[ResourceClaim]:
        return self.reflector.store.values()

    def changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if old is not None or (new is not None and self._holds(new)):
            self._on_change()

    def synced(self) -> None:
        self._on_change()

    def _holds(self, claim: ResourceClaim) -> bool:
        allocation = claim.status.allocation
        return allocation is not None and any(
            result.pool == self._pool and result.driver in self._drivers for result in allocation.devices.results
        )
