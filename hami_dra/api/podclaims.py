"""References from a pod to its claims, derived from the pod alone. Pure."""

from sys import intern
from typing import NamedTuple

from hami_dra.api.core import Pod


class ClaimRef(NamedTuple):
    """One entry of `spec.resourceClaims`."""

    pod_claim_name: str
    key: str
    """`namespace/name` of the claim, or empty while the claim controller has not generated it."""
    template: str
    """`namespace/name` of the template, or empty."""


def claim_refs(pod: Pod) -> list[ClaimRef]:
    """Return the references in the pod's order.

    Entries that need no claim (according to the status) are left out.
    """
    namespace = pod.metadata.namespace
    generated = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    refs: list[ClaimRef] = []
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name:
            refs.append(ClaimRef(entry.name, intern(f"{namespace}/{entry.resource_claim_name}"), ""))
        elif entry.resource_claim_template_name:
            template = f"{namespace}/{entry.resource_claim_template_name}"
            if entry.name not in generated:
                refs.append(ClaimRef(entry.name, "", template))
            elif name := generated[entry.name]:
                refs.append(ClaimRef(entry.name, intern(f"{namespace}/{name}"), template))
    return refs


def claim_keys(pod: Pod) -> list[str]:
    """Return the keys of the pod's claims, including its extended-resource claim."""
    special = pod.status.extended_resource_claim_status
    if not pod.spec.resource_claims and special is None:
        return []
    keys = [ref.key for ref in claim_refs(pod) if ref.key]
    if special is not None and special.resource_claim_name:
        keys.append(intern(f"{pod.metadata.namespace}/{special.resource_claim_name}"))
    return keys


class VolumeClaimRef(NamedTuple):
    """A volume of a pod that is a PersistentVolumeClaim."""

    volume: str
    key: str
    """`namespace/name` of the PersistentVolumeClaim."""
    is_ephemeral: bool
    """It is generated for this pod, and deleted with it."""


def volume_claim_refs(pod: Pod) -> list[VolumeClaimRef]:
    """Return the pod's volumes that are PersistentVolumeClaims, in order."""
    namespace, name = pod.metadata.namespace, pod.metadata.name
    refs = []
    for volume in pod.spec.volumes:
        source = volume.persistent_volume_claim
        if source is not None:
            refs.append(VolumeClaimRef(volume.name, intern(f"{namespace}/{source.claim_name}"), is_ephemeral=False))
        elif volume.ephemeral is not None:
            refs.append(VolumeClaimRef(volume.name, intern(f"{namespace}/{name}-{volume.name}"), is_ephemeral=True))
    return refs


def volume_claim_keys(pod: Pod) -> list[str]:
    """Return the keys of the PersistentVolumeClaims that the pod uses."""
    return [ref.key for ref in volume_claim_refs(pod)] if pod.spec.volumes else []
