"""Whether a controller leads, and what it holds, by its lease: for commands that say where a pod would go.

Called by `controller.cli.state` and `status` with a live cluster.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from hami_dra.api import kinds, names
from hami_dra.api.times import elapsed
from hami_dra.kube.protocol import ClusterError, Forbidden, NotFound

if TYPE_CHECKING:
    from controller.views.overview import Reservation
    from hami_dra.api.core import LeaseSpec
    from hami_dra.kube.http import HttpCluster

_CLOCKS: Final = timedelta(seconds=30)
"""Clocks of this machine and of the controller's differ by less than this."""
_DURATION: Final = 15
_PATIENCE: Final = 5.0


async def is_leaderless(cluster: "HttpCluster") -> bool:
    """Return whether no controller holds the lease. A lease that is not there, or may not be read, says
    nothing: hami-dra may be installed elsewhere, or run without election.
    """
    try:
        lease = await cluster.get(kinds.LEASE, names.CONTROLLER, names.SYSTEM_NAMESPACE)
    except (NotFound, Forbidden):
        return False
    return not is_held(lease.spec, datetime.now(UTC))


async def held_places(cluster: "HttpCluster", namespace: str) -> "tuple[Reservation, ...]":
    """Return what the leader holds for units; nothing if there is none, or its lease cannot be read."""
    from controller.views.overview import decoded

    try:
        async with asyncio.timeout(_PATIENCE):
            lease = await cluster.get(kinds.LEASE, names.CONTROLLER, namespace)
    except (ClusterError, TimeoutError):
        return ()
    text = lease.metadata.annotations.get(names.HELD_PLACES, "") if is_held(lease.spec, datetime.now(UTC)) else ""
    return decoded(text)


def is_held(lease: "LeaseSpec", now: datetime) -> bool:
    """Return whether the lease has a holder that renewed it in time."""
    silent = elapsed(lease.renew_time, now) if lease.holder_identity else None
    return silent is not None and silent <= timedelta(seconds=lease.lease_duration_seconds or _DURATION) + _CLOCKS
