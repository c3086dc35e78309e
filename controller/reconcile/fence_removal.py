"""The end of a fence rule: deleted, and our finalizer taken off, for no controller does that any more.

Called by `uninstall` and, in native mode, by `term`. To run it again is always right: whatever a crash left half done is finished.
"""

from controller.reconcile.fence_rules import released, waits_for_release
from controller.reconcile.writer import Writer
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import DeviceTaintRule
from hami_dra.cluster.protocol import Cluster, NotFound


async def remove_rule(cluster: Cluster, writer: Writer, kind: Kind[DeviceTaintRule], name: str) -> bool:
    """Whether it was there. Raises ClusterError (Conflict: somebody wrote to it meanwhile, again) and LeadershipLost."""
    try:
        await writer.delete(kind, name)
    except NotFound:
        return False
    try:
        left = await cluster.get(kind, name)
        if waits_for_release(left):
            await writer.patch(kind, name, released(left))
    except NotFound:
        return True  # it carried no finalizer, or somebody was quicker
    return True
