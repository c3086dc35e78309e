"""What the parts of `reconcile` ask of a pod. Pure; no store, no cluster."""

from dataclasses import dataclass

from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Condition

FINISHED = frozenset({"Succeeded", "Failed"})
UNSCHEDULABLE = "Unschedulable"


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """One entry of `spec.resourceClaims`, resolved as far as the pod alone allows."""

    pod_claim_name: str
    key: str
    """`namespace/name` of the claim, or empty while the claim controller has not generated it."""
    template: str
    """`namespace/name` of the template, or empty."""


def claim_refs(pod: Pod) -> list[ClaimRef]:
    """In the pod's order. Entries that need no claim (the status says so with no name) are left out."""
    namespace = pod.metadata.namespace
    generated = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    refs = []
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name:
            refs.append(ClaimRef(entry.name, f"{namespace}/{entry.resource_claim_name}", ""))
        elif entry.resource_claim_template_name:
            template = f"{namespace}/{entry.resource_claim_template_name}"
            if entry.name not in generated:
                refs.append(ClaimRef(entry.name, "", template))
            elif name := generated[entry.name]:
                refs.append(ClaimRef(entry.name, f"{namespace}/{name}", template))
    return refs


def claim_keys(pod: Pod) -> list[str]:
    """The claims the pod refers to, its extended-resource claim included."""
    keys = [ref.key for ref in claim_refs(pod) if ref.key]
    special = pod.status.extended_resource_claim_status
    if special is not None and special.resource_claim_name:
        keys.append(f"{pod.metadata.namespace}/{special.resource_claim_name}")
    return keys


def is_live(pod: Pod) -> bool:
    """Not finished and not on its way out: it may still want a place or hold one."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in FINISHED


def is_pending(pod: Pod) -> bool:
    """Live and not bound."""
    return not pod.spec.node_name and is_live(pod)


def is_probe(pod: Pod) -> bool:
    return names.PROBE_LABEL in pod.metadata.labels


def has_our_gate(pod: Pod) -> bool:
    return any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)


def other_gates(pod: Pod) -> list[str]:
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]


def scheduled_condition(pod: Pod) -> Condition | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled":
            return condition
    return None


def is_unschedulable(pod: Pod) -> bool:
    """kube-scheduler tried and found no node."""
    condition = scheduled_condition(pod)
    return condition is not None and condition.status == "False" and condition.reason == UNSCHEDULABLE


def priority(pod: Pod) -> int:
    return pod.spec.priority or 0
