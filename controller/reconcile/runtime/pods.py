"""Predicates on pods for the parts of `reconcile`. Pure; no store, no cluster."""

from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Condition
from hami_dra.api.podclaims import ClaimRef as ClaimRef  # noqa: PLC0414 (offered here too)
from hami_dra.api.podclaims import claim_keys as claim_keys  # noqa: PLC0414 (offered here too)
from hami_dra.api.podclaims import claim_refs as claim_refs  # noqa: PLC0414 (offered here too)
from hami_dra.api.podclaims import volume_claim_keys as volume_claim_keys  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import is_bound as is_bound  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import is_done as is_done  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import is_finished as is_finished  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import is_leaving as is_leaving  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import is_live as is_live  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import is_pending as is_pending  # noqa: PLC0414 (offered here too)
from hami_dra.api.podstate import other_gates as other_gates  # noqa: PLC0414 (offered here too)

UNSCHEDULABLE = "Unschedulable"


def is_probe(pod: Pod) -> bool:
    return names.PROBE_LABEL in pod.metadata.labels


def has_our_gate(pod: Pod) -> bool:
    return any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)


def scheduled_condition(pod: Pod) -> Condition | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled":
            return condition
    return None


def is_unschedulable(pod: Pod) -> bool:
    """Return whether kube-scheduler tried and found no node."""
    condition = scheduled_condition(pod)
    return condition is not None and condition.status == "False" and condition.reason == UNSCHEDULABLE


def node_made_free(pod: Pod) -> str:
    """Return the node that kube-scheduler is emptying for the pod by preemption, or empty.

    We nominate nodes, too (`claim_commit`). But whenever kube-scheduler finds a pod unschedulable it
    writes the nomination again, or removes it if preemption does not help; only for a pod that
    never preempts it leaves it unchanged.
    """
    return pod.status.nominated_node_name if is_unschedulable(pod) and pod.spec.preemption_policy != "Never" else ""


def priority(pod: Pod) -> int:
    return pod.spec.priority or 0
