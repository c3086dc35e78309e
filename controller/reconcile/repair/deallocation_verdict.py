"""When an allocation that kube-scheduler has not used is given up. Pure.

Called by `deallocate` for every pod that our allocation pins to a node where it is not.
"""

from typing import Final

from msgspec import Struct

from controller.reasons import meaning_of
from controller.reconcile.queueing import FOREVER
from controller.reconcile.runtime import Settings
from controller.rules import taint_code
from hami_dra.api.core import Node, Pod
from hami_dra.api.meta import Condition
from hami_dra.api.podstate import is_pending, is_unschedulable, node_made_free, scheduler_message

VOLUME_TIMEOUT: Final = 600.0
"""Seconds that kube-scheduler gives the volumes of a pod to be bound (`bindTimeoutSeconds`)."""


class PinnedPod(Struct):
    """A pod that kube-scheduler should bind to `node` soon, or that it bound to another node."""

    key: str
    node: str
    since: float
    condition: Condition | None
    refused_at: float | None = None
    """When kube-scheduler first reported Unschedulable since `since`. Later reports do not restart the time."""
    not_before: float = float("-inf")


class DeallocationVerdict(Struct, frozen=True):
    cause: str
    """Label of the metric: node, unschedulable, sibling, gang, misplaced."""
    why: str


def is_schedulable(pod: Pod, settings: Settings) -> bool:
    """Return whether kube-scheduler handles the pod."""
    return (
        is_pending(pod)
        and not pod.spec.scheduling_gates
        and pod.spec.scheduler_name in settings.scheduling.scheduler_names
    )


def verdict(
    watched: PinnedPod,
    pod: Pod,
    node: Node | None,
    now: float,
    settings: Settings,
    *,
    victims: bool = False,
    binds_volumes: bool = False,
) -> DeallocationVerdict | None:
    """Return why to give up, or None. `victims` are evicted there; `binds_volumes`: a volume is being bound."""
    if pod.spec.node_name:
        # kube-scheduler does not write reserved claims, so nothing stops a binding in progress.
        return DeallocationVerdict(
            "misplaced", f"kube-scheduler bound the pod to node {pod.spec.node_name} while it was moved"
        )
    if node is None:
        return DeallocationVerdict("node", f"node {watched.node} is gone")
    untolerated = meaning_of(taint_code(pod.spec.tolerations, node))
    if untolerated.state:  # kube-scheduler judges all other taints
        return DeallocationVerdict("node", untolerated.about(f"node {watched.node}", 1))
    if not is_unschedulable(pod):
        return None
    if watched.refused_at is not None:
        patient_until = watched.refused_at + settings.repair.unschedulable_timeout
    else:
        # The condition is older than the commit: a busy kube-scheduler may not have tried again
        # yet, or it binds volumes, which it says nothing of until they are bound.
        patient_until = watched.since + (VOLUME_TIMEOUT if binds_volumes else settings.repair.silent_timeout)
    if node_made_free(pod) == watched.node:
        # Our nomination stays if kube-scheduler runs without preemption: then no pods are being
        # evicted.
        patient_until = FOREVER if victims else patient_until + settings.queueing.nomination_patience
    if now < patient_until:
        return None
    why = f"kube-scheduler does not bind it to node {watched.node}: {scheduler_message(pod)}"
    return DeallocationVerdict("unschedulable", why)
