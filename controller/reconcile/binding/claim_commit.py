"""Writes a decision: all claims of the pod, or none.

Called by the scheduling cycle, for many pods concurrently. The order (docs/design/decision.md): the
pod gets its nominated node, and so is read again, while every claim without the finalizer gets it;
then every claim gets allocation and reservation in one status write. After a crash between any two
writes the next leader finishes or reverts the rest. The caller removes the gate.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from controller.allocation import new_share_id, stamped
from controller.decide import ClaimAllocation, Decision
from controller.reconcile.binding.claim_writer import ClaimWriter, Rejected, Stale
from controller.reconcile.runtime import Context, patches
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podgroups import PodGroup, is_group_claim
from hami_dra.api.podstate import has_our_gate, is_bound, is_live, other_gates
from hami_dra.api.resource import ConsumerReference, ResourceClaim
from hami_dra.kube.protocol import ClusterError, Conflict, NotFound


def consumer_of(pod: Pod, pod_claim_name: str, group: PodGroup | None) -> patches.Json:
    """Return the consumer, as kube-scheduler reserves it: the pod, or its `group`, whose claims are for all."""
    if group is not None and any(
        entry.name == pod_claim_name and is_group_claim(entry, group) for entry in pod.spec.resource_claims
    ):
        meta = group.metadata
        return {
            "apiGroup": kinds.POD_GROUP.group,
            "resource": kinds.POD_GROUP.plural,
            "name": meta.name,
            "uid": meta.uid,
        }
    return {"resource": kinds.POD.plural, "name": pod.metadata.name, "uid": pod.metadata.uid}


def is_of_group(consumer: ConsumerReference, pod: Pod) -> bool:
    """Return whether the consumer is the PodGroup of the pod. A pod does not know its UID."""
    group = pod.spec.scheduling_group
    return (
        group is not None
        and (consumer.api_group, consumer.resource) == (kinds.POD_GROUP.group, kinds.POD_GROUP.plural)
        and consumer.name == group.pod_group_name
    )


def is_consumer(consumer: ConsumerReference, pod: Pod) -> bool:
    """Return whether the consumer is the pod, or its PodGroup."""
    return consumer.uid == pod.metadata.uid or is_of_group(consumer, pod)


log = logging.getLogger(__name__)


class Prepared(Struct, frozen=True):
    """A decision of which everything but the allocations is written."""

    pod: Pod
    """Its present state, with the node nominated."""
    claims: tuple[ResourceClaim, ...]
    """Protected, in the order of the decision's allocations."""


@dataclass(eq=False)
class ClaimCommitter:
    """`is_fenced`: whether the drivers' fences hold; called right before each write of an allocation."""

    context: Context
    claims: ClaimWriter
    is_fenced: Callable[[Collection[str]], bool]
    share_id: Callable[[], str] = new_share_id

    async def commit(self, pod: Pod, decision: Decision) -> Pod:
        """Return the pod as before the first allocation. Raises Stale (decide again), Rejected, LeadershipLost."""
        prepared = await self.prepare(pod, decision)
        await self.allocate(pod, decision, prepared)
        return prepared.pod

    async def prepare(self, pod: Pod, decision: Decision, *, nominate: bool = True) -> Prepared:
        """Nominate the node, or just read the pod, and protect the claims. Raises Stale, Rejected, LeadershipLost."""
        claims = tuple([entry.claim for entry in decision.allocations])
        current = self._current(pod, decision, nominate=nominate)
        if all(map(self.claims.is_ready, claims)):  # so are most: they have the finalizer from the start
            return Prepared(await current, claims)
        outcomes = await _all([current, *map(self.claims.protect, claims)])
        _raise_first(outcomes)
        return Prepared(outcomes[0], tuple(outcomes[1:]))

    async def allocate(self, pod: Pod, decision: Decision, prepared: Prepared) -> tuple[ResourceClaim, ...]:
        """Allocate all claims, or none. Returns them. Raises Stale, Rejected, LeadershipLost."""
        results = await _all(
            [
                self._allocate(entry, claim, pod)
                for entry, claim in zip(decision.allocations, prepared.claims, strict=True)
            ]
        )
        if any(isinstance(result, BaseException) for result in results):
            await self._clear([result for result in results if isinstance(result, ResourceClaim)], pod)
            _raise_first(results)
        return tuple(results)

    async def _allocate(self, entry: ClaimAllocation, claim: ResourceClaim, pod: Pod) -> ResourceClaim:
        allocation = stamped(entry.allocation, self.context.clock.wall(), self.share_id)
        drivers = {result["driver"] for result in allocation["devices"]["results"]}
        consumer = consumer_of(pod, entry.pod_claim_name, self.context.informers.gangs.pod_group(pod))
        await self.context.informers.wait_claims_current()
        return await self.claims.allocate(
            claim, allocation, consumer, lambda: self.is_fenced(drivers) and self.context.informers.are_claims_current
        )

    async def _current(self, pod: Pod, decision: Decision, *, nominate: bool) -> Pod:
        """Write the node into the pod's status and return the present pod. Raises Stale,
        LeadershipLost.

        kube-scheduler otherwise evaluates every node of the cluster and then writes the name
        itself; with a nomination it tries that node only. It is a hint: if it cannot be written,
        the pod is just read.
        """
        current = await (self._nominated(pod, decision.node) if nominate else self._read(pod))
        self._check(pod, current, decision)
        return current

    async def _nominated(self, pod: Pod, node: str) -> Pod:
        if pod.spec.node_name or pod.status.nominated_node_name == node:
            return await self._read(pod)
        try:
            current = await self.context.writer.patch(
                POD,
                pod.metadata.name,
                patches.nominate(pod, node),
                namespace=pod.metadata.namespace,
                subresource="status",
            )
        except (NotFound, Conflict):
            raise Stale(f"pod {pod.key} is gone") from None
        except ClusterError as error:
            log.info("pod %s: node %s not nominated: %s", pod.key, node, error)
            return await self._read(pod)
        self.context.informers.observe_pod(current)
        return current

    async def _read(self, pod: Pod) -> Pod:
        try:
            return await self.context.cluster.get(POD, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            raise Stale(f"pod {pod.key} is gone") from None
        except ClusterError as error:
            raise Stale(f"pod {pod.key} cannot be read: {error}") from error

    @staticmethod
    def _check(pod: Pod, current: Pod, decision: Decision) -> None:
        """Raise Stale if the decision no longer suits the pod."""
        if current.metadata.uid != pod.metadata.uid or not is_live(current):
            raise Stale(f"pod {pod.key} is gone")
        if current.spec.node_name not in ("", decision.node):
            raise Stale(f"pod {pod.key} was bound to {current.spec.node_name}")
        if other_gates(current):
            raise Stale(f"pod {pod.key} waits for another gate")
        if has_our_gate(pod) and not has_our_gate(current):
            log.debug("pod %s: the gate was lifted meanwhile", pod.key)

    async def take_back(self, done: Iterable[ResourceClaim], pod: Pod) -> None:
        """Deallocate the written claims, unless the pod is on a node by now: without our gate it may be."""
        known = self.context.informers.pod(pod.key)
        if known is None or not has_our_gate(known):
            try:
                known = await self._read(pod)
            except Stale:
                known = None
        if known is None or known.metadata.uid != pod.metadata.uid or not known.spec.node_name:
            await self._clear(done, pod)

    async def _clear(self, done: Iterable[ResourceClaim], pod: Pod) -> None:
        """Deallocate the claims that were written, and that only the pod itself can rely on."""

        def only_ours(claim: ResourceClaim) -> bool:
            return self.claims.is_ours(claim) and all(
                consumer.uid == pod.metadata.uid
                or (is_of_group(consumer, pod) and not any(map(is_bound, self.context.informers.pods_of(claim.key))))
                for consumer in claim.status.reserved_for
            )

        await _all([self.claims.clear(claim, only_ours) for claim in done])


async def _all(steps: list[Any]) -> list[Any]:
    """Return results and exceptions, in order. A single step runs directly: most pods have one claim."""
    if len(steps) == 1:
        try:
            return [await steps[0]]
        except (Stale, Rejected) as error:
            return [error]
    return await asyncio.gather(*steps, return_exceptions=True)


def _raise_first(results: list[Any]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result
