"""Removal of a fence rule: deleted, and our finalizer removed, because no controller does so any
more.

Called by `uninstall` and, in native mode, by `term`. It is idempotent: whatever a crash left half
done is finished.
"""

from controller.reconcile.fence.rules import released, waits_for_release
from controller.reconcile.runtime import Writer
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import DeviceTaintRule
from hami_dra.kube.protocol import Cluster, NotFound


async def remove_rule(cluster: Cluster, writer: Writer, kind: Kind[DeviceTaintRule], name: str) -> bool:
    """Return whether the rule existed. Raises ClusterError (Conflict after repeated writes), LeadershipLost."""
    try:
        await writer.delete(kind, name)
    except NotFound:
        return False
    try:
        left = await cluster.get(kind, name)
        if waits_for_release(left):
            await writer.patch(kind, name, released(left))
    except NotFound:
        return True  # it carried no finalizer, or another client was faster
    return True
