"""The events of a preemption. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from controller.reconcile.runtime import messages
from hami_dra.api.core import Pod
from hami_dra.api.printable import counted

_NAMED: Final = 3
"""Objects that a note names."""


def preempting(pod: Pod, nodes: Sequence[str], victims: Sequence[Pod]) -> messages.Message:
    """Return a message about a pod for which others are evicted; those of other namespaces are not named."""
    own = [victim.metadata.name for victim in victims if victim.metadata.namespace == pod.metadata.namespace]
    named = f" ({', '.join(own[:_NAMED])}{', ...' if len(own) > _NAMED else ''})" if own else ""
    others = f", {len(victims) - len(own)} of other namespaces" if own and len(own) < len(victims) else ""
    note = (
        f"evicts {counted(len(victims), 'pod')} of lower priority{named}{others} on {_listed(nodes)}. The pod keeps its "
        "scheduling gate until its devices are free; they are held for it"
    )
    return messages.Message(messages.NORMAL, messages.PREEMPTING, note, messages.PREEMPTING)


def delayed_until(begins: datetime) -> messages.Message:
    """Return when pods are evicted for a pod if it still has no devices then."""
    note = f"no pod is evicted for it before {begins.strftime('%Y-%m-%dT%H:%M:%SZ')}: its preemption delay"
    return messages.Message(messages.NORMAL, messages.PREEMPTION_DELAYED, note, messages.PREEMPTION_DELAYED)


def preempted(pod: Pod, victim: Pod) -> messages.Message:
    """Return a message about a victim, as kube-scheduler writes it: the preemptor by UID, which may be another tenant's."""
    note = f"Preempted by pod {pod.metadata.uid} on node {victim.spec.node_name}"
    return messages.Message(messages.NORMAL, messages.PREEMPTED, note)


def _listed(nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMED
    return f"node {', '.join(nodes[:_NAMED])}" + (f" and {more} more" if more > 0 else "")
