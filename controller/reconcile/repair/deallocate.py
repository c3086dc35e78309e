"""Undo allocations that kube-scheduler cannot use, so that no pod waits forever for its node.

Watches every pod that our allocation pins to a node where it is not.
`deallocation_verdict` (pure) says when to give up; `Deallocator` carries it out: the pod is read
from the API server, all our claims of it on that node that only unbound pods have reserved are
cleared, the refusal is remembered, an event says why. Claims that kube-scheduler cleared are
noticed and completed in the same way. When the informers show the claims unallocated, the queue
decides them again. Devices are never preempted.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.reconcile.binding import AssumedPods, ClaimWriter, Rejected, Stale, is_consumer, is_of_group
from controller.reconcile.queueing import Triggers, WaitingPods
from controller.reconcile.repair.deallocation_verdict import DeallocationVerdict, PinnedPod, is_schedulable, verdict
from controller.reconcile.runtime import Context, messages, patches
from hami_dra.api import podstate
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import POD
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.guard import LoopGuard
from hami_dra.kube.protocol import ClusterError, NotFound
from hami_dra.kube.waiting import wait_at_most

log = logging.getLogger(__name__)

_TRY_AGAIN = 5.0
"""Seconds until a failed undo is retried."""


@dataclass(eq=False)
class Deallocator:
    context: Context
    claims: ClaimWriter
    assumed_pods: AssumedPods
    waiting: WaitingPods
    triggers: Triggers
    _guard: LoopGuard = field(init=False)
    _watched: dict[str, PinnedPod] = field(default_factory=dict)
    _busy: set[str] = field(default_factory=set)
    """UIDs of pods."""
    _to_complete: dict[str, tuple[str, str]] = field(default_factory=dict)
    """UID → pod key and node, refused already: kube-scheduler cleared one claim, the others follow."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._guard = self.context.guard("undo", Stale, Rejected)

    # --- handlers, subscribed by the controller ----------------------------------------------------

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None:
            self._watched.pop(pod.metadata.uid, None)
            self.assumed_pods.gone(pod)
            return
        self._refresh(new)
        if node := self._node_being_emptied(new):
            self.waiting.refusals.lift(new.metadata.uid, node, self.context.clock.monotonic())

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new or old
        assert claim is not None
        if old is not None and new is not None:
            self._notice_foreign_undo(old, new)
        if (old is None or old.status.allocation is None) and (new is None or new.status.allocation is None):
            return
        for pod in self.context.informers.pods_of(claim.key):
            self._refresh(pod)

    def start(self) -> None:
        for pod in self.context.informers.pods.store:
            with self._guard.each(pod.key):
                self._refresh(pod)

    def node_changed(self, _old: Node | None, _new: Node | None) -> None:
        if self._watched:
            self._wake.set()

    # --- carrying out -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for uid, (pod_key, node) in list(self._to_complete.items()):
                    if uid not in self._busy:
                        del self._to_complete[uid]
                        self._start(group, uid, pod_key, node, DeallocationVerdict("sibling", _given_up(node)))
                now = self.context.clock.monotonic()
                for uid, watched in list(self._watched.items()):
                    with self._guard.each(watched.key):
                        if (found := self._judge(watched, now)) is not None:
                            watched.not_before = now + _TRY_AGAIN
                            self._start(group, uid, watched.key, watched.node, found)
                self._wake.clear()
                await wait_at_most(self._wake, self.context.settings.repair.sweep_interval)

    async def release(self, pod: Pod, why: str, *, cause: str = "sibling") -> None:
        """Clear what only this unbound pod holds, because it cannot get the rest. No node is
        refused. `cause`: `sibling` for its own claims, `gang` for the other members of its gang.
        """
        with self._guard.each(pod.key):
            held = [claim for claim in self.context.informers.claims_of(pod) if claim.status.allocation is not None]
            nodes = {
                patches.pinned_node(claim)
                for claim in held
                if all(consumer.uid == pod.metadata.uid for consumer in claim.status.reserved_for)
                or (cause == "gang" and all(is_of_group(consumer, pod) for consumer in claim.status.reserved_for))
            }
            if cause == "gang":
                nodes.add(pod.status.nominated_node_name)
            for node in sorted(nodes - {""}):
                await self._undo(pod.metadata.uid, pod.key, node, DeallocationVerdict(cause, why), refuse=False)

    def _start(self, group: asyncio.TaskGroup, uid: str, pod_key: str, node: str, found: DeallocationVerdict) -> None:
        if uid not in self._busy:
            group.create_task(self._undo(uid, pod_key, node, found), name=f"undo {pod_key}")

    async def _undo(
        self, uid: str, pod_key: str, node: str, found: DeallocationVerdict, *, refuse: bool = True
    ) -> None:
        if uid in self._busy:
            return
        self._busy.add(uid)
        affected: dict[str, Pod] = {}
        try:
            with self._guard.each(pod_key):
                await self._take_back(uid, pod_key, node, found, affected, refuse=refuse)
        except (Stale, Rejected) as error:
            log.warning("pod %s: allocation on node %s not taken back: %s", pod_key, node, error)
        finally:
            self._busy.discard(uid)
            put_off = self.waiting.in_flight.end(affected)
            self.triggers.evaluate_all(dict.fromkeys((*(pod.key for pod in affected.values()), *put_off)))

    async def _take_back(
        self, uid: str, pod_key: str, node: str, found: DeallocationVerdict, affected: dict[str, Pod], *, refuse: bool
    ) -> None:
        """Clear the pod's claims; `affected` is filled before. Raises Stale, Rejected, LeadershipLost."""
        pod = await self._read_pod(pod_key)
        if pod is None or pod.metadata.uid != uid or not podstate.is_live(pod) or pod.spec.node_name == node:
            return
        held = [claim for claim in self.context.informers.claims_of(pod) if self._may_clear(claim, node)]
        if not held and found.cause not in ("sibling", "gang"):
            return
        if found.cause in ("node", "unschedulable", "gang"):
            pod = await self._withdraw(pod, node)
        affected |= self._affected(pod, held)
        self.waiting.in_flight.begin(affected)
        if refuse and not pod.spec.node_name:
            # of the pod itself it was remembered when kube-scheduler cleared the first claim
            unaware = (other for other in affected.values() if found.cause != "sibling" or other is not pod)
            self._refuse(unaware, node, found.why)
        cleared = [
            claim for claim in held if await self.claims.clear(claim, lambda newest: self._may_clear(newest, node))
        ]
        self._report(pod, len(cleared), node, found)
        if refuse and (times := sum(self.waiting.refusals.times(uid).values())) > 1:
            self.context.metrics.repeated_undos.inc()
            self.context.events.report(POD, pod, messages.repeatedly_refused(times, _quoted(found.why, pod)), "Undo")

    async def _withdraw(self, pod: Pod, node: str) -> Pod:
        """Withdraw the nomination, so that kube-scheduler keeps no room there. Returns the present pod."""
        if pod.status.nominated_node_name != node:
            return pod
        meta = pod.metadata
        try:
            pod = await self.context.writer.patch(
                POD, meta.name, patches.withdraw_nomination(pod), namespace=meta.namespace, subresource="status"
            )
        except ClusterError as error:
            log.info("pod %s: nomination of node %s not withdrawn: %s", pod.key, node, error)
            return pod
        self.context.informers.observe_pod(pod)
        return pod

    def _affected(self, pod: Pod, held: list[ResourceClaim]) -> dict[str, Pod]:
        """Return by UID the pod, and the pending pods that share what it holds."""
        others = (
            other for claim in held for other in self.context.informers.pods_of(claim.key) if podstate.is_pending(other)
        )
        return {pod.metadata.uid: pod} | {other.metadata.uid: other for other in others}

    def _refuse(self, pods: Iterable[Pod], node: str, why: str) -> None:
        """Remember the refusal before the claims are cleared, so that the next decision knows it.

        Nothing is remembered for deleted pods. A refusal that is in force is remembered already: no
        decision chooses the node meanwhile.
        """
        now = self.context.clock.monotonic()
        for pod in pods:
            uid, is_there = pod.metadata.uid, self.context.informers.present(pod) is not None
            is_news = node not in self.waiting.refusals.nodes(uid, now)
            if is_there and is_news and self._node_being_emptied(pod) != node:
                self.waiting.refusals.add(uid, node, why, now)

    def _node_being_emptied(self, pod: Pod) -> str:
        """Return the node from which pods are being evicted for this pod, or empty.

        A nomination alone says little: ours stays in the pod, next to the condition of an earlier
        attempt, until kube-scheduler has written the result of this one.
        """
        node = podstate.node_made_free(pod)
        return node if node and any(map(podstate.is_leaving, self.context.informers.pods_on(node))) else ""

    def _report(self, pod: Pod, cleared: int, node: str, found: DeallocationVerdict) -> None:
        log.info("pod %s: node %s given up (%d claims cleared): %s", pod.key, node, cleared, found.why)
        if cleared:
            self.context.metrics.undos.labels(found.cause).inc(cleared)
            note = f"allocation on node {node} taken back: {found.why}"
            self.context.events.report(POD, pod, messages.warning(messages.ALLOCATION_UNDONE, note), "Undo")

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, watched: PinnedPod, now: float) -> DeallocationVerdict | None:
        pod = self.context.informers.pod(watched.key)
        if pod is None or now < watched.not_before:
            return None
        victims = self._node_being_emptied(pod) == watched.node
        found = verdict(
            watched,
            pod,
            self.context.informers.node(watched.node),
            now,
            self.context.settings,
            victims=victims,
            binds_volumes=self.context.inventory.volumes.is_binding(pod, watched.node),
        )
        if found is None or not any(
            self._may_clear(claim, watched.node) for claim in self.context.informers.claims_of(pod)
        ):
            return None
        if found.cause == "unschedulable" and self._others_may_run(pod, watched.node, now):
            return None
        return found

    def _others_may_run(self, pod: Pod, node: str, now: float) -> bool:
        """Return whether a pod that shares what it holds on the node may still be bound there.

        A pod that fits uses the claim, as under kube-scheduler; the pod that does not fit waits.
        Pods behind a gate, or of other schedulers, do not count: kube-scheduler does not handle
        them.
        """
        others = {
            other.metadata.uid: other
            for claim in self.context.informers.claims_of(pod)
            if self._may_clear(claim, node)
            for other in self.context.informers.pods_of(claim.key)
        }
        return any(
            uid != pod.metadata.uid
            and is_schedulable(other, self.context.settings)
            and not self._is_given_up(uid, other, node, now)
            for uid, other in others.items()
        )

    def _is_given_up(self, uid: str, pod: Pod, node: str, now: float) -> bool:
        watched = self._watched.get(uid)
        if watched is None or watched.node != node:
            return True  # something else keeps the pod from the node
        return verdict(watched, pod, self.context.informers.node(node), now, self.context.settings) is not None

    def _refresh(self, pod: Pod) -> None:
        """Start, continue, or stop watching the pod, and count it as its claims say."""
        uid = pod.metadata.uid
        node = self.assumed_pods.refresh(pod)
        if not node:
            self._watched.pop(uid, None)
            return
        now = self.context.clock.monotonic()
        watched = self._watched.get(uid)
        condition = podstate.scheduled_condition(pod)
        if watched is None or watched.node != node:
            self._watched[uid] = PinnedPod(pod.key, node, now, condition)
        elif not podstate.is_unschedulable(pod):
            watched.condition, watched.refused_at = condition, None
        elif watched.condition != condition and watched.refused_at is None:
            watched.refused_at = now

    def _may_clear(self, claim: ResourceClaim, node: str) -> bool:
        """Return whether we allocated it on that node, and none of its pods is there."""
        if not self.claims.is_ours(claim) or patches.pinned_node(claim) != node:
            return False
        users = self.context.informers.pods_of(claim.key)
        bound = any(podstate.is_bound(pod) and pod.spec.node_name == node for pod in users)
        known = all(any(is_consumer(consumer, pod) for pod in users) for consumer in claim.status.reserved_for)
        return known and not bound

    def _notice_foreign_undo(self, old: ResourceClaim, new: ResourceClaim) -> None:
        """Remember at once that kube-scheduler cleared our allocation: its pod does not fit the node."""
        if old.status.allocation is None or new.status.allocation is not None:
            return
        node = patches.pinned_node(old)
        if not node or not self.claims.is_ours(old) or self.claims.is_clearing(new):
            return
        now = self.context.clock.monotonic()
        for pod in self.context.informers.pods_of(new.key):
            if podstate.is_pending(pod) and any(is_consumer(consumer, pod) for consumer in old.status.reserved_for):
                self.context.metrics.undos.labels("scheduler").inc()
                self._refuse((pod,), node, _given_up(node))
                self.waiting.refusals.settle(pod.metadata.uid, now, now + self.context.settings.repair.settle_time)
                self._to_complete[pod.metadata.uid] = pod.key, node
                self._wake.set()

    async def _read_pod(self, key: str) -> Pod | None:
        """Read the pod from the API server: the store may not know of a binding yet."""
        namespace, _, name = key.partition("/")
        try:
            pod = await self.context.cluster.get(POD, name, namespace)
        except NotFound:
            return None
        except ClusterError as error:
            raise Stale(str(error)) from error
        self.context.informers.observe_pod(pod)
        return pod


def _given_up(node: str) -> str:
    return f"kube-scheduler gave up node {node}"


def _quoted(why: str, pod: Pod) -> str:
    """Return why a node was given up, with what kube-scheduler says of the pod."""
    said = podstate.scheduler_message(pod) if podstate.is_unschedulable(pod) else ""
    return why if said in why else f"{why}: {said}"
