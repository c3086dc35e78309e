"""Writes `controller.kubernetes.io/pod-deletion-cost` on pods of ReplicaSets (`--deletion-cost=on`), so
that a scale-in frees whole devices and nodes.

A cost that someone else wrote stays: ours is the one that `hami.io/deletion-cost` repeats. A pod is
written only when its cost changes, and at most once in five minutes.
"""

import logging
from typing import Final

from controller.preemption import deletion_costs
from controller.reconcile.runtime import Context, patches
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound
from hami_dra.kube.protocol import ClusterError, Conflict, NotFound

log = logging.getLogger(__name__)

_EVERY: Final = 10.0
_PAUSE: Final = 300.0
"""Seconds between two writes to one pod, refused ones included."""


class DeletionCosts:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = context.guard("deletion costs")
        self._stale = {pod.spec.node_name for pod in context.informers.pods.store if is_bound(pod)}
        """Nodes whose pods have changed since they were looked at."""
        self._not_before: dict[str, float] = {}
        """By UID of the pod."""

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in filter(None, (old, new)):
            if is_bound(pod) and pod.spec.resource_claims:
                self._stale.add(pod.spec.node_name)
        if new is None and old is not None:
            self._not_before.pop(old.metadata.uid, None)

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost."""
        while True:
            stale, self._stale = self._stale, set()
            for node in sorted(stale):
                with self._guard.each(node):
                    if not all([await self._write(pod, cost) for pod, cost in self._changed(node)]):
                        self._stale.add(node)
                await self._context.clock.sleep(0)
            await self._context.clock.sleep(_EVERY)

    def _changed(self, node: str) -> list[tuple[Pod, str | None]]:
        """Return the pods on the node with another cost than theirs; None: none."""
        tenants = self._context.informers.tenants
        held = tenants.held()
        pods = [(pod, held.devices(claim_keys(pod))) for pod in tenants.on(node)]
        costs = deletion_costs([(pod, devices) for pod, devices in pods if devices])
        found: list[tuple[Pod, str | None]] = []
        for pod, _ in pods:
            annotations = pod.metadata.annotations
            before, ours = annotations.get(names.POD_DELETION_COST), annotations.get(names.DELETION_COST)
            cost = str(costs[pod.metadata.uid]) if costs.get(pod.metadata.uid) else None
            if cost != before and before == ours:
                found.append((pod, cost))
        return found

    async def _write(self, pod: Pod, cost: str | None) -> bool:
        """Return whether nothing is left to do. Raises LeadershipLost."""
        meta, now = pod.metadata, self._context.clock.monotonic()
        if now < self._not_before.get(meta.uid, now):
            return False
        patch = {
            "metadata": {
                **patches.guard(pod),
                "annotations": {names.POD_DELETION_COST: cost, names.DELETION_COST: cost},
            }
        }
        self._not_before[meta.uid] = now + _PAUSE
        try:
            await self._context.writer.patch(kinds.POD, meta.name, patch, namespace=meta.namespace)
        except (NotFound, Conflict) as error:
            self._not_before.pop(meta.uid, None)
            return isinstance(error, NotFound)
        except ClusterError as error:
            log.info("pod %s: its deletion cost is not written yet: %s", pod.key, error)
            return False
        return True
