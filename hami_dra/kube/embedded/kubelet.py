"""Every node's kubelet: a bound pod runs once its claims are allocated and reserved for it, and a
deleted one ends at once.

Pods never finish on their own.
"""

from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.kube.embedded.copies import Copies, consumer_uids
from hami_dra.kube.embedded.worker import Worker


class Kubelet:
    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self.worker = Worker("run", self._sync)
        copies.pods.listeners.append(self._pod_changed)
        copies.claims.on_change(lambda claim: self.worker.add_all(copies.pods_of(claim)))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or not new.spec.node_name:
            return
        if old is None or not old.spec.node_name or new.metadata.deletion_timestamp != old.metadata.deletion_timestamp:
            self.worker.add(new.key)

    async def _sync(self, key: str) -> None:
        pod = self._copies.pods.store.get(key)
        if pod is None or not pod.spec.node_name:
            return
        if pod.metadata.deletion_timestamp:
            await self._copies.pods.delete(pod, grace_period_seconds=0)
            return
        if pod.status.phase != "Pending":
            return
        for claim in self._copies.claims_of(pod):
            if claim is None or claim.status.allocation is None or pod.metadata.uid not in consumer_uids(claim):
                return
        cluster, meta = self._copies.cluster, pod.metadata
        raw = await cluster.get_raw(POD, meta.name, meta.namespace)
        now = cluster.timestamp()
        others = [item for item in (raw["status"].get("conditions") or ()) if item.get("type") != "Ready"]
        status = {
            "phase": "Running",
            "startTime": now,
            "conditions": [*others, {"type": "Ready", "status": "True", "lastTransitionTime": now}],
        }
        guard = {"resourceVersion": raw["metadata"]["resourceVersion"], "uid": meta.uid}
        patch = {"metadata": guard, "status": status}
        await self._copies.pods.patch(pod, patch, "status")
