"""Which claims a pod refers to, as far as the pod alone allows. Pure; used by whoever goes from pods to claims."""

from dataclasses import dataclass

from hami_dra.api.core import Pod


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """One entry of `spec.resourceClaims`."""

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
