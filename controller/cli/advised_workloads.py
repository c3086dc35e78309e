"""Workloads whose pod templates the doctor reads, of a live cluster.

Called by `controller.cli.doctor_reading`. Every template once, where people write it: an object with
a controller says what its controller says. Therefore ReplicaSets are not listed; there are ten old
ones for each Deployment, and pods of others are read as pods.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.kube.protocol import Forbidden, NotFound

if TYPE_CHECKING:
    from controller.insight.doctor import Raw
    from hami_dra.kube.http import HttpCluster

KINDS: Final[tuple[Kind[Any], ...]] = (
    kinds.DEPLOYMENT,
    kinds.STATEFUL_SET,
    kinds.DAEMON_SET,
    kinds.CRON_JOB,
    kinds.JOB,
)


async def read_workloads(cluster: "HttpCluster", miss: Callable[[str], None]) -> "tuple[Raw, ...]":
    """Return workloads without a controller. `miss` gets what may not be read. Raises ClusterError."""
    found: list[Raw] = []
    unread: list[str] = []
    for kind in KINDS:
        try:
            items = await cluster.list_raw(kind)
        except (NotFound, Forbidden):
            unread.append(kind.plural)
            continue
        found.extend(
            {"apiVersion": kind.api_version, "kind": kind.name, **item} for item in items if not _has_controller(item)
        )
    if unread:
        miss(f"{', '.join(unread)} are not examined: this user may not list them in all namespaces")
    return tuple(found)


def _has_controller(item: Mapping[str, Any]) -> bool:
    return any(each.get("controller") for each in item["metadata"].get("ownerReferences") or ())
