"""What state a pod is in, for everything that counts pods or asks whether one still uses something. Pure.

One question each, because they differ where a pod is being deleted: it wants no place any more, but as long as it runs it
holds its node's resources and its devices.

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
    """Return whether all its containers have ended for good."""
    return pod.status.phase in FINISHED


def is_live(pod: Pod) -> bool:
    """Return whether it may still want a place, or keep the one it has: neither finished nor being deleted."""
    return pod.metadata.deletion_timestamp is None and not is_finished(pod)


def is_pending(pod: Pod) -> bool:
    """Return whether it waits for a node."""
    return not pod.spec.node_name and is_live(pod)


def is_bound(pod: Pod) -> bool:
    """Return whether it holds its claims on a node. Until it has finished it does so even while it is being deleted."""
    return bool(pod.spec.node_name) and not is_finished(pod)


def is_leaving(pod: Pod) -> bool:
    """Return whether it still holds something on a node and is about to give it back."""
    return pod.metadata.deletion_timestamp is not None and is_bound(pod)


def is_done(pod: Pod) -> bool:
    """Return whether it uses its claims no more, nor ever will: the claim controller drops its reservations (isPodDone)."""
    return not is_live(pod) and not is_bound(pod)


def other_gates(pod: Pod) -> list[str]:
    """Return the scheduling gates that are not ours: until they are lifted the pod may not run, and may never."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
