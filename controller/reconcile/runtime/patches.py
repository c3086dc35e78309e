"""The patches of every write to claims and pods. Pure: objects in, JSON out.

All are merge patches guarded by UID and resourceVersion: each applies to the version that was read,
or not at all. Only the nomination of a node is guarded by the UID alone, because it is valid
whatever else changed.
"""

from typing import Any

from hami_dra.api import names
from hami_dra.api.allocator import allocator_of
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object
from hami_dra.api.resource import ResourceClaim

Json = dict[str, Any]


def guard(about: Object) -> Json:
    return {"uid": about.metadata.uid, "resourceVersion": about.metadata.resource_version}


def is_protected(claim: ResourceClaim) -> bool:
    """Return whether the finalizer is set, so that the status may be written."""
    return names.DELETE_PROTECTION in claim.metadata.finalizers


def is_ours(claim: ResourceClaim, installation: str) -> bool:
    return allocator_of(claim.status.allocation) == installation


def protect(claim: ResourceClaim) -> Json:
    """Return the write of the finalizer that protects an allocated claim.

    Claims of pods have it from the start (manifests/protect-policy.yaml). On a claim that is not
    allocated it does no harm: the claim controller removes it when the claim is deleted.
    """
    return {"metadata": {**guard(claim), "finalizers": [*claim.metadata.finalizers, names.DELETE_PROTECTION]}}


def allocate(claim: ResourceClaim, allocation: Json, consumer: Json) -> Json:
    """Return the write of allocation and reservation; the claim controller ends it with the consumer."""
    return {"metadata": guard(claim), "status": {"allocation": allocation, "reservedFor": [consumer]}}


def clear(claim: ResourceClaim) -> Json:
    return {"metadata": guard(claim), "status": {"allocation": None, "reservedFor": None, "devices": None}}


def unprotect(claim: ResourceClaim) -> Json:
    """Return the write that removes the finalizer from a claim that is not allocated."""
    finalizers = [name for name in claim.metadata.finalizers if name != names.DELETE_PROTECTION]
    return {"metadata": {**guard(claim), "finalizers": finalizers}}


def nominate(pod: Pod, node: str) -> Json:
    """Return the nomination of a node. kube-scheduler tries this node first, and no other if it fits."""
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node}}


def withdraw_nomination(pod: Pod) -> Json:
    return {"metadata": guard(pod), "status": {"nominatedNodeName": None}}


def lift_gate(pod: Pod) -> Json:
    """Return the write that removes our gate and no other.

    The resourceVersion guarantees that the list is the one that was read. A merge patch like every
    other write here; a JSON patch that tests and removes costs the API server just as much.
    """
    others = [{"name": gate.name} for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
    return {"metadata": guard(pod), "spec": {"schedulingGates": others or None}}


def pinned_node(claim: ResourceClaim) -> str:
    """Return the only node from which the allocation can be used, or empty."""
    allocation = claim.status.allocation
    selector = allocation.node_selector if allocation is not None else None
    if selector is None or len(selector.node_selector_terms) != 1:
        return ""
    for requirement in selector.node_selector_terms[0].match_fields:
        if requirement.key == "metadata.name" and requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.values[0]
    return ""
