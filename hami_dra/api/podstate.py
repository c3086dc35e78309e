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
from hami_dra.api.meta import Condition

FINISHED: Final = frozenset({"Succeeded", "Failed"})
"""The terminal values of `status.phase`. Such a pod may be kept for days and uses nothing."""

UNSCHEDULABLE: Final = "Unschedulable"
"""Reason of the condition PodScheduled where kube-scheduler found no node."""


def is_finished(pod: Pod) -> bool:
    """Return whether all its containers have ended permanently."""
    return pod.status.phase in FINISHED


def is_live(pod: Pod) -> bool:
    """Return whether it may need a node, or keep its node: neither finished nor being deleted."""
    return pod.metadata.deletion_timestamp is None and not is_finished(pod)


def is_pending(pod: Pod) -> bool:
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


def is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


def other_gates(pod: Pod) -> list[str]:
    """Return the scheduling gates other than ours: until they are removed, the pod may not run."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]


def is_probe(pod: Pod) -> bool:
    """Return whether it only tests the fence."""
    return names.PROBE_LABEL in pod.metadata.labels


def has_our_gate(pod: Pod) -> bool:
    """Return whether it has the scheduling gate that hami-dra adds and removes."""
    return any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)


def scheduled_condition(pod: Pod) -> Condition | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled":
            return condition
    return None


def scheduler_message(pod: Pod) -> str:
    """Return what kube-scheduler last said of the pod, or empty."""
    condition = scheduled_condition(pod)
    return condition.message if condition is not None else ""


def is_unschedulable(pod: Pod) -> bool:
    """Return whether kube-scheduler tried and found no node."""
    condition = scheduled_condition(pod)
    return condition is not None and condition.status == "False" and condition.reason == UNSCHEDULABLE


def node_made_free(pod: Pod) -> str:
    """Return the node that kube-scheduler is emptying for the pod by preemption, or empty.

    The controller nominates nodes, too (`claim_commit`). But whenever kube-scheduler finds a pod
    unschedulable it writes the nomination again, or removes it if preemption does not help; only
    for a pod that never preempts it leaves it unchanged.
    """
    return pod.status.nominated_node_name if is_unschedulable(pod) and pod.spec.preemption_policy != "Never" else ""


def priority(pod: Pod) -> int:
    return pod.spec.priority or 0
