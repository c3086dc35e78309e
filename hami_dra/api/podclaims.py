"""References from a pod to its claims, derived from the pod alone. Pure."""

import re
from functools import lru_cache
from sys import intern
from typing import Final, NamedTuple

from hami_dra.api import names
from hami_dra.api.core import Pod, PodResourceClaim, PodResourceClaimStatus

_FEW: Final = 16
"""Entries. The claims of a pod that has more are not remembered: a tenant could fill the memory."""


class ClaimRef(NamedTuple):
    """One entry of `spec.resourceClaims`."""

    pod_claim_name: str
    key: str
    """`namespace/name` of the claim, or empty while the claim controller has not generated it."""
    template: str
    """`namespace/name` of the template, or empty."""


def missing_object(pod_claim_name: str, kind: str, key: str) -> str:
    """Return the sentence about a claim or template that a pod names and that does not exist.

    >>> missing_object("gpu", "ResourceClaim", "team/c")
    'spec.resourceClaims[gpu]: ResourceClaim team/c does not exist; create it, or create the pod again with another \
resourceClaimName'
    """
    field = f"{kind[0].lower()}{kind[1:]}Name"
    return (
        f"spec.resourceClaims[{pod_claim_name}]: {kind} {key} does not exist; create it, or create the pod again with "
        f"another {field}"
    )


CONVERTED_CLAIM: Final = re.compile(r"(?:^|-)hami-([0-9a-f]{8})[0-9a-f]{10}$")
"""Ends the name of a claim that the webhook chose for one pod: a digest of the request, then chance."""


def is_created_by_us(pod: Pod, ref: ClaimRef) -> bool:
    """Return whether the controller creates what the entry names, from the pod's annotation."""
    if names.CONVERTED_REQUEST not in pod.metadata.annotations:
        return False
    return bool(ref.template or CONVERTED_CLAIM.search(ref.key))


class _Claims(NamedTuple):
    refs: tuple[ClaimRef, ...]
    keys: tuple[str, ...]
    """Of the claims that exist."""


def claim_refs(pod: Pod) -> tuple[ClaimRef, ...]:
    """Return the references in the pod's order. Entries that need no claim (according to the status) are left out."""
    return _claims_of(pod).refs


def claim_keys(pod: Pod) -> tuple[str, ...]:
    """Return the keys of the pod's claims, including its extended-resource claim."""
    special = pod.status.extended_resource_claim_status
    if special is None or not special.resource_claim_name:
        return _claims_of(pod).keys if pod.spec.resource_claims else ()
    return *_claims_of(pod).keys, intern(f"{pod.metadata.namespace}/{special.resource_claim_name}")


def _claims_of(pod: Pod) -> _Claims:
    entries, generated = pod.spec.resource_claims, pod.status.resource_claim_statuses
    known = _remembered if len(entries) + len(generated) <= _FEW else _derived
    return known(pod.metadata.namespace, entries, generated)


def _derived(
    namespace: str, entries: tuple[PodResourceClaim, ...], statuses: tuple[PodResourceClaimStatus, ...]
) -> _Claims:
    generated = {status.name: status.resource_claim_name for status in statuses}
    refs: list[ClaimRef] = []
    for entry in entries:
        if entry.resource_claim_name:
            refs.append(ClaimRef(entry.name, intern(f"{namespace}/{entry.resource_claim_name}"), ""))
        elif entry.resource_claim_template_name:
            template = f"{namespace}/{entry.resource_claim_template_name}"
            if entry.name not in generated:
                refs.append(ClaimRef(entry.name, "", template))
            elif name := generated[entry.name]:
                refs.append(ClaimRef(entry.name, intern(f"{namespace}/{name}"), template))
    return _Claims(tuple(refs), tuple([ref.key for ref in refs if ref.key]))


_remembered: Final = lru_cache(maxsize=64)(_derived)
"""Each change of a pod asks for its claims several times."""


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
    return [ref.key for ref in volume_claim_refs(pod)] if pod.spec.volumes else []
