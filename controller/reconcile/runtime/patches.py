"""The patches of every write to claims and pods. Pure: objects in, JSON out.

All are merge patches guarded by UID and resourceVersion: each applies to the version that was read,
or not at all. Only the nomination of a node is guarded by the UID alone, because it is valid
whatever else changed.
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
    """Return whether finalizer and annotation are set, so that the status may be written."""
    return names.DELETE_PROTECTION in claim.metadata.finalizers and is_ours(claim, installation)


def is_ours(claim: ResourceClaim, installation: str) -> bool:
    return claim.metadata.annotations.get(names.ALLOCATED_BY) == installation


def mark(claim: ResourceClaim, installation: str) -> Json:
    """Return the first write: the finalizer that protects an allocated claim, and the allocator's
    name.
    """
    finalizers = list(claim.metadata.finalizers)
    if names.DELETE_PROTECTION not in finalizers:
        finalizers.append(names.DELETE_PROTECTION)
    annotations = {names.ALLOCATED_BY: installation}
    return {"metadata": {**guard(claim), "finalizers": finalizers, "annotations": annotations}}


def allocate(claim: ResourceClaim, allocation: Json, consumer: Json) -> Json:
    """Return the second write: allocation and reservation together.

    The claim controller then deallocates the claim when the consumer is gone.
    """
    return {"metadata": guard(claim), "status": {"allocation": allocation, "reservedFor": [consumer]}}


def clear(claim: ResourceClaim) -> Json:
    """Return the write that deallocates the claim."""
    return {"metadata": guard(claim), "status": {"allocation": None, "reservedFor": None, "devices": None}}


def unmark(claim: ResourceClaim) -> Json:
    """Return the last write of a deallocated claim: it removes our annotation and the finalizer."""
    finalizers = [name for name in claim.metadata.finalizers if name != names.DELETE_PROTECTION]
    annotations = {names.ALLOCATED_BY: None}
    return {"metadata": {**guard(claim), "finalizers": finalizers, "annotations": annotations}}


def disown(claim: ResourceClaim) -> Json:
    """Return the write that removes only our annotation.

    The allocation and its finalizer stay with the pod that uses them.
    """
    return {"metadata": {**guard(claim), "annotations": {names.ALLOCATED_BY: None}}}


def nominate(pod: Pod, node: str) -> Json:
    """Return the nomination of a node. kube-scheduler tries this node first, and no other if it
    fits.
    """
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
