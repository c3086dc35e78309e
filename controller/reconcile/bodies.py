"""The bodies of every write to claims and pods. Pure: objects in, JSON out.

All are merge patches guarded by uid and resourceVersion: each changes what was read, or nothing. Only the nomination of a node
is guarded by the uid alone, for it holds whatever else changed.
"""

from typing import Any

from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object
from hami_dra.api.resource import ResourceClaim

Json = dict[str, Any]


def guard(about: Object) -> Json:
    return {"uid": about.metadata.uid, "resourceVersion": about.metadata.resource_version}


def is_marked(claim: ResourceClaim, installation: str) -> bool:
    """Finalizer and annotation are there: the status may be written."""
    return names.DELETE_PROTECTION in claim.metadata.finalizers and is_ours(claim, installation)


def is_ours(claim: ResourceClaim, installation: str) -> bool:
    return claim.metadata.annotations.get(names.ALLOCATED_BY) == installation


def mark(claim: ResourceClaim, installation: str) -> Json:
    """First write: the finalizer that keeps an allocated claim from vanishing, and who allocates it."""
    finalizers = list(claim.metadata.finalizers)
    if names.DELETE_PROTECTION not in finalizers:
        finalizers.append(names.DELETE_PROTECTION)
    annotations = {names.ALLOCATED_BY: installation}
    return {"metadata": {**guard(claim), "finalizers": finalizers, "annotations": annotations}}


def allocate(claim: ResourceClaim, allocation: Json, pod: Pod) -> Json:
    """Second write: allocation and reservation in one, so that the claim controller frees it when the pod goes."""
    consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
    return {"metadata": guard(claim), "status": {"allocation": allocation, "reservedFor": [consumer]}}


def clear(claim: ResourceClaim) -> Json:
    """Takes an allocation back."""
    return {"metadata": guard(claim), "status": {"allocation": None, "reservedFor": None, "devices": None}}


def unmark(claim: ResourceClaim) -> Json:
    """Last write of a claim that is not allocated any more: our annotation goes, and the finalizer with it."""
    finalizers = [name for name in claim.metadata.finalizers if name != names.DELETE_PROTECTION]
    annotations = {names.ALLOCATED_BY: None}
    return {"metadata": {**guard(claim), "finalizers": finalizers, "annotations": annotations}}


def disown(claim: ResourceClaim) -> Json:
    """Only our annotation goes: the allocation and its finalizer stay with the pod that uses them."""
    return {"metadata": {**guard(claim), "annotations": {names.ALLOCATED_BY: None}}}


def nominate(pod: Pod, node: str) -> Json:
    """Where the pod is expected. kube-scheduler tries this node first, and no other if it fits."""
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node}}


def withdraw_nomination(pod: Pod) -> Json:
    return {"metadata": guard(pod), "status": {"nominatedNodeName": None}}


def lift_gate(pod: Pod) -> Json:
    """Our gate goes, others stay. The resourceVersion makes sure that the list is the one that was read.

    A merge patch like every other write here; a JSON patch that tests and removes costs the API server just as much.
    """
    others = [{"name": gate.name} for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
    return {"metadata": guard(pod), "spec": {"schedulingGates": others or None}}


def pinned_node(claim: ResourceClaim) -> str:
    """The one node an allocation can be used from, or empty."""
    allocation = claim.status.allocation
    selector = allocation.node_selector if allocation is not None else None
    if selector is None or len(selector.node_selector_terms) != 1:
        return ""
    for requirement in selector.node_selector_terms[0].match_fields:
        if requirement.key == "metadata.name" and requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.values[0]
    return ""
