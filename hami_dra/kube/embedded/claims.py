"""A small version of kube-controller-manager's resourceclaim controller.

Source: pkg/controller/resourceclaim/controller.go, 1.37.

- A pod with templates gets its claims: generated names, owned by the pod, listed in its status;
  gated pods too.
- A pod that has a node but no reservation is reserved.
- A consumer that was deleted or has finished is dropped from `reservedFor`. When the last one goes
  and the claim carries the delete-protection finalizer, the allocation is cleared, then the
  finalizer.
- A deleted, unreserved claim loses allocation and finalizer. A generated claim of a finished pod is
  deleted.

An allocation that never had a reservation is left alone, as upstream does: the allocating
controller is responsible for it.
"""

from typing import Any

from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD, RESOURCE_CLAIM_TEMPLATE
from hami_dra.api.meta import controller_of
from hami_dra.api.names import DELETE_PROTECTION, POD_CLAIM_NAME
from hami_dra.api.podstate import is_done
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.embedded.copies import Copies, claim_names, consumer_uids, owner_reference
from hami_dra.kube.embedded.worker import Worker


class ClaimController:
    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._cluster = copies.cluster
        self.pods = Worker("claims of pod", self._sync_pod)
        self.claims = Worker("claim", self._sync_claim)
        copies.pods.listeners.append(self._pod_changed)
        copies.claims.on_present(lambda claim: self.claims.add(claim.key))
        copies.claims.on_change(lambda claim: self.pods.add_all(copies.pods_of(claim)))
        copies.templates.on_present(
            lambda template: self.pods.add_all(pod.key for pod in copies.pods.store.find("template", template.key))
        )

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and not is_done(new):
            if new.spec.resource_claims:
                self.pods.add(new.key)
            return
        uid = (new or old).metadata.uid  # type: ignore[union-attr]  # one of the two exists
        for index in ("consumer", "owner"):
            self.claims.add_all(claim.key for claim in self._copies.claims.store.find(index, uid))

    # --- pods -------------------------------------------------------------------------------------

    async def _sync_pod(self, key: str) -> None:
        pod = self._copies.pods.store.get(key)
        if pod is None or is_done(pod) or pod.metadata.deletion_timestamp:
            return
        names = claim_names(pod)
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name and names[entry.name] is None:
                names[entry.name] = await self._generate(pod, entry.name, entry.resource_claim_template_name)
        pod = await self._tell_pod(pod, names)
        if pod.spec.node_name:
            for claim in self._copies.claims_of(pod):
                if claim is not None and claim.status.allocation and not claim.metadata.deletion_timestamp:
                    await self.reserve(claim, pod)

    async def _generate(self, pod: Pod, entry: str, template_name: str) -> str | None:
        """Return the claim's name; None while the template does not exist.

        The template's creation queues the pod again.
        """
        for claim in self._copies.claims.store.find("owner", pod.metadata.uid):
            if claim.metadata.annotations.get(POD_CLAIM_NAME) == entry and not claim.metadata.deletion_timestamp:
                return claim.metadata.name
        namespace = pod.metadata.namespace
        if self._copies.templates.store.get(f"{namespace}/{template_name}") is None:
            return None
        template = await self._cluster.get_raw(RESOURCE_CLAIM_TEMPLATE, template_name, namespace)
        wanted: dict[str, Any] = template["spec"]
        meta = wanted.get("metadata") or {}
        body = {
            "metadata": {
                "generateName": f"{pod.metadata.name}-{entry}-",
                "labels": meta.get("labels") or {},
                "annotations": {**(meta.get("annotations") or {}), POD_CLAIM_NAME: entry},
                "ownerReferences": [owner_reference(POD, pod)],
            },
            "spec": wanted["spec"],
        }
        return (await self._copies.claims.create(body, namespace)).metadata.name

    async def _tell_pod(self, pod: Pod, names: dict[str, str | None]) -> Pod:
        generated = [entry.name for entry in pod.spec.resource_claims if entry.resource_claim_template_name]
        statuses = [{"name": entry, "resourceClaimName": names[entry]} for entry in generated if names[entry]]
        known = [
            {"name": status.name, "resourceClaimName": status.resource_claim_name}
            for status in pod.status.resource_claim_statuses
        ]
        if statuses == known:
            return pod
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": statuses}}
        return await self._copies.pods.patch(pod, patch, "status")

    async def reserve(self, claim: ResourceClaim, pod: Pod) -> None:
        """Append the pod to reservedFor.

        Raises Conflict if the claim has changed, Invalid if it has 256 entries already.
        """
        if pod.metadata.uid in consumer_uids(claim):
            return
        consumers = [*_consumers(claim), {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}]
        await self._write_status(claim, {"reservedFor": consumers})

    # --- claims -----------------------------------------------------------------------------------

    async def _sync_claim(self, key: str) -> None:
        claim = self._copies.claims.store.get(key)
        if claim is None:
            return
        before = claim.status.reserved_for
        gone = {consumer.uid for consumer in before if consumer.resource == "pods" and self._is_gone(consumer.uid)}
        left = [consumer for consumer in _consumers(claim) if consumer["uid"] not in gone]
        protected = DELETE_PROTECTION in claim.metadata.finalizers
        if gone:
            freed = not left and protected
            claim = await self._write_status(
                claim, {"reservedFor": left or None} | ({"allocation": None} if freed else {})
            )
            if freed:
                claim = await self._unprotect(claim)
        elif claim.metadata.deletion_timestamp and protected and not before:
            if claim.status.allocation:
                claim = await self._write_status(claim, {"allocation": None})
            claim = await self._unprotect(claim)
        owner = controller_of(claim)
        generated = POD_CLAIM_NAME in claim.metadata.annotations and owner
        if generated and self._is_gone(owner) and not claim.metadata.deletion_timestamp:
            await self._copies.claims.delete(claim)

    def _is_gone(self, uid: str) -> bool:
        pod = self._copies.pod_by_uid(uid)
        if pod is None:
            # The claim may name a pod that the pod watch has not delivered yet, so ask the server.
            return not self._cluster.knows(uid)
        return is_done(pod)

    async def _write_status(self, claim: ResourceClaim, status: dict[str, Any]) -> ResourceClaim:
        patch = {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
        return await self._copies.claims.patch(claim, patch, "status")

    async def _unprotect(self, claim: ResourceClaim) -> ResourceClaim:
        finalizers = [finalizer for finalizer in claim.metadata.finalizers if finalizer != DELETE_PROTECTION]
        meta = {"resourceVersion": claim.metadata.resource_version, "finalizers": finalizers}
        return await self._copies.claims.patch(claim, {"metadata": meta})


def _consumers(claim: ResourceClaim) -> list[dict[str, str]]:
    return [
        {"resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}
        | ({"apiGroup": consumer.api_group} if consumer.api_group else {})
        for consumer in claim.status.reserved_for
    ]
