"""Garbage collection: pods on deleted nodes, and pods and claims whose owner no longer exists.

(The memory cluster itself deletes dependents together with their owner. Upstream waits a while
before it deletes the pods of a lost node; here that would only make tests slow.)
"""

from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import NODE
from hami_dra.api.meta import Object
from hami_dra.kube.embedded.copies import Copies
from hami_dra.kube.embedded.worker import Worker
from hami_dra.kube.protocol import NotFound


class GarbageCollector:
    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self.pods = Worker("collect pod", self._sync_pod)
        self.claims = Worker("collect claim", self._sync_claim)
        copies.pods.listeners.append(self._pod_changed)
        copies.claims.on_present(lambda claim: self.claims.add(claim.key))
        copies.nodes.listeners.append(self._node_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and (old is None or old.spec.node_name != new.spec.node_name):
            self.pods.add(new.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is None:
            self.pods.add_all(pod.key for pod in self._copies.pods.store.find("node", old.metadata.name))

    async def _sync_pod(self, key: str) -> None:
        pod = self._copies.pods.store.get(key)
        if pod is None or pod.metadata.deletion_timestamp:
            return
        lost = pod.spec.node_name and not await self._node_exists(pod.spec.node_name)
        if lost or self._is_orphan(pod):
            await self._copies.pods.delete(pod)

    async def _sync_claim(self, key: str) -> None:
        claim = self._copies.claims.store.get(key)
        if claim is not None and claim.metadata.deletion_timestamp is None and self._is_orphan(claim):
            await self._copies.claims.delete(claim)

    async def _node_exists(self, name: str) -> bool:
        try:
            # Not from the copy: the node watch may be behind the pod watch.
            await self._copies.cluster.get(NODE, name)
        except NotFound:
            return False
        return True

    def _is_orphan(self, item: Object) -> bool:
        owners = [owner.uid for owner in item.metadata.owner_references]
        return bool(owners) and not any(self._copies.cluster.knows(uid) for uid in owners)
