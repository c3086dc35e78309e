"""The state of a pod, for code that counts pods or asks whether a pod still uses something. Pure.

One predicate each, because they differ for a pod that is being deleted: it needs no node any more,
but as long as it runs it holds its node's resources and its devices.

| pod | `is_pending` | `is_live` | `is_bound` | `is_leaving` | `is_done` |
|---|---|---|---|---|---|
| not on a node | yes | yes | | | |
| not on a node, being deleted | | | | | yes |
| on a node | | yes | yes | | |
| on a node, being deleted | | | yes | yes | |
| Succeeded or Failed, wherever it was | | | | | yes |
"""

from typing import Final

from hami_dra.api import names
from hami_dra.api.core import Pod

FINISHED: Final = frozenset({"Succeeded", "Failed"})
"""The terminal values of `status.phase`. Such a pod may be kept for days and uses nothing."""


def is_finished(pod: Pod) -> bool:
    """Return whether all its containers have ended permanently."""
    return pod.status.phase in FINISHED


def is_live(pod: Pod) -> bool:
    """Return whether it may need a node, or keep its node: neither finished nor being deleted."""
    return pod.metadata.deletion_timestamp is None and not is_finished(pod)


def is_pending(pod: Pod) -> bool:
    """Return whether it waits for a node."""
    return not pod.spec.node_name and is_live(pod)


def is_bound(pod: Pod) -> bool:
    """Return whether it holds its claims on a node.

    It does so until it has finished, even while it is being deleted.
    """
    return bool(pod.spec.node_name) and not is_finished(pod)


def is_leaving(pod: Pod) -> bool:
    """Return whether it still holds something on a node and is about to release it."""
    return pod.metadata.deletion_timestamp is not None and is_bound(pod)


def is_done(pod: Pod) -> bool:
    """Return whether it has stopped using its claims permanently.

    The claim controller then drops its reservations (isPodDone).
    """
    return not is_live(pod) and not is_bound(pod)


def other_gates(pod: Pod) -> list[str]:
    """Return the scheduling gates other than ours: until they are removed, the pod may not run."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
