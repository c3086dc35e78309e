"""The watched copies shared by the embedded controllers, with lookups."""

from typing import Any

from msgspec import Struct

from hami_dra.api import kinds
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.resource import ResourceClaim, ResourceClaimTemplate
from hami_dra.kube.embedded.api_server import MemoryCluster
from hami_dra.kube.embedded.worker import WatchedStore
from hami_dra.kube.reflector import Reflector


def claim_names(pod: Pod) -> dict[str, str | None]:
    """Return entry of spec.resourceClaims → name of its claim; None until the claim is generated."""
    generated = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    return {entry.name: entry.resource_claim_name or generated.get(entry.name) for entry in pod.spec.resource_claims}


def claim_keys(pod: Pod) -> list[str]:
    return [f"{pod.metadata.namespace}/{name}" for name in claim_names(pod).values() if name]


def owner_reference(kind: Kind[Any], owner: Object) -> dict[str, Any]:
    """Return the reference to an object that controls another one."""
    meta = owner.metadata
    named = {"apiVersion": kind.api_version, "kind": kind.name, "name": meta.name, "uid": meta.uid}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def consumer_uids(claim: ResourceClaim) -> list[str]:
    return [consumer.uid for consumer in claim.status.reserved_for]


def _templates(pod: Pod) -> list[str]:
    entries = pod.spec.resource_claims
    return [
        f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
        for entry in entries
        if entry.resource_claim_template_name
    ]


def _owners(item: Object) -> list[str]:
    return [owner.uid for owner in item.metadata.owner_references]


class Copies(Struct):
    cluster: MemoryCluster
    pods: WatchedStore[Pod]
    claims: WatchedStore[ResourceClaim]
    templates: WatchedStore[ResourceClaimTemplate]
    nodes: WatchedStore[Node]

    @staticmethod
    def of(cluster: MemoryCluster) -> "Copies":
        return Copies(
            cluster,
            WatchedStore(
                cluster,
                kinds.POD,
                uid=lambda pod: [pod.metadata.uid],
                node=lambda pod: [pod.spec.node_name],
                claim=claim_keys,
                template=_templates,
                owner=_owners,
            ),
            WatchedStore(cluster, kinds.RESOURCE_CLAIM, consumer=consumer_uids, owner=_owners),
            WatchedStore(cluster, kinds.RESOURCE_CLAIM_TEMPLATE),
            WatchedStore(cluster, kinds.NODE),
        )

    def reflectors(self) -> tuple[Reflector[Any], ...]:
        # Nodes before pods and claims before pods: a handler of a pod finds the objects it refers
        # to.
        return (self.nodes.reflector, self.templates.reflector, self.claims.reflector, self.pods.reflector)

    def pod_by_uid(self, uid: str) -> Pod | None:
        return next(iter(self.pods.store.find("uid", uid)), None)

    def pods_of(self, claim: ResourceClaim) -> list[str]:
        """Return the keys of the pods that use a claim."""
        return [pod.key for pod in self.pods.store.find("claim", claim.key)]

    def claims_of(self, pod: Pod) -> list[ResourceClaim | None]:
        """Return the pod's claims in its order; None for each one that does not exist (yet)."""
        space = pod.metadata.namespace
        return [self.claims.store.get(f"{space}/{name}") if name else None for name in claim_names(pod).values()]
