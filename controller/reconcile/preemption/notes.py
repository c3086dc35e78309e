"""The events of a preemption. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from controller.inventory import QuotaLine, owed
from controller.reconcile.runtime import messages
from hami_dra.api.core import Pod
from hami_dra.api.printable import counted

_NAMED: Final = 3
"""Objects that a note names."""


def preempting(
    pod: Pod, nodes: Sequence[str], victims: Sequence[Pod], reclaims: Sequence[QuotaLine]
) -> messages.Message:
    """Return a message about a pod for which others are evicted; those of other namespaces are not named."""
    own, others = _own(pod, victims)
    back = owed(pod.metadata.namespace, reclaims)
    note = (
        f"evicts {counted(len(victims), 'pod')}{'' if back else ' of lower priority'}{own}{others} on {_listed(nodes)}"
        f"{f', to take back what its namespace is owed: {back}' if back else ''}. The pod keeps its scheduling gate until its "
        "devices are free; they are held for it"
    )
    return messages.Message(messages.NORMAL, messages.PREEMPTING, note, messages.PREEMPTING)


def delayed_until(begins: datetime) -> messages.Message:
    """Return when pods are evicted for a pod if it still has no devices then."""
    note = f"no pod is evicted for it before {_moment(begins)}: its preemption delay"
    return messages.Message(messages.NORMAL, messages.PREEMPTION_DELAYED, note, messages.PREEMPTION_DELAYED)


def place_reserved(
    pod: Pod, nodes: Sequence[str], leaving: Sequence[Pod], ends: float | None, until: datetime
) -> messages.Message:
    """Return a message about a pod for which a place is reserved until then. `ends`: when it is free at the latest, if
    known.
    """
    own, others = _own(pod, leaving)
    pods = f"{counted(len(leaving), 'pod')}{own}{others} there {'has' if len(leaving) == 1 else 'have'} ended"
    when = (
        f"at {_moment(datetime.fromtimestamp(ends, UTC))} at the latest" if ends is not None else "at an unknown time"
    )
    note = (
        f"has waited long for room, and its place on {_listed(nodes)} is reserved: its devices go to no pod of the same or "
        f"lower priority that ends later. It is free once {pods}, {when}, and reserved until {_moment(until)}"
    )
    return messages.Message(messages.NORMAL, messages.PLACE_RESERVED, note, messages.PLACE_RESERVED)


def place_given_up(nodes: Sequence[str], why: str) -> messages.Message:
    note = f"its place on {_listed(nodes)} is reserved no longer: {why}"
    return messages.Message(messages.NORMAL, messages.PLACE_GIVEN_UP, note, messages.PLACE_RESERVED)


def moving(pod: Pod, nodes: Sequence[str], moves: Sequence[Pod]) -> messages.Message:
    """Return a message about a pod for which others move; those of other namespaces are not named."""
    own, others = _own(pod, moves)
    note = (
        f"has waited long for room: {counted(len(moves), 'pod')}{own}{others} {'moves' if len(moves) == 1 else 'move'} to make room "
        f"on {_listed(nodes)}, one after the other, each to a place that is held for it. The pod keeps its scheduling gate until then"
    )
    return messages.Message(messages.NORMAL, messages.DEFRAGMENTING, note, messages.DEFRAGMENTING)


def moved(pod: Pod, victim: Pod, node: str) -> messages.Message:
    """Return a message about a pod that moves; the other one, which may be another tenant's, by UID."""
    note = (
        f"Evicted from node {victim.spec.node_name} to make room for pod {pod.metadata.uid}. A place on node {node} is held "
        "for the pod that replaces it"
    )
    return messages.Message(messages.NORMAL, messages.MOVED, note)


def preempted(pod: Pod, victim: Pod, reclaims: Sequence[QuotaLine]) -> messages.Message:
    """Return a message about a victim, as kube-scheduler writes it: the preemptor by UID, which may be another tenant's."""
    note = f"Preempted by pod {pod.metadata.uid} on node {victim.spec.node_name}"
    if (namespace := victim.metadata.namespace) != pod.metadata.namespace and reclaims:
        has = owed(namespace, reclaims)
        note += (
            f": its namespace {namespace} has {f'more than its guarantee: {has}' if has else 'no guarantee of that'}"
        )
    return messages.Message(messages.NORMAL, messages.PREEMPTED, note)


def _own(pod: Pod, others: Sequence[Pod]) -> tuple[str, str]:
    """Return how those of the pod's namespace are named, and how many are of others."""
    own = [other.metadata.name for other in others if other.metadata.namespace == pod.metadata.namespace]
    named = f" ({', '.join(own[:_NAMED])}{', ...' if len(own) > _NAMED else ''})" if own else ""
    return named, f", {len(others) - len(own)} of other namespaces" if own and len(own) < len(others) else ""


def _moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMED
    return f"node {', '.join(nodes[:_NAMED])}" + (f" and {more} more" if more > 0 else "")
