"""The binding cycle: assume a decision, write it in the background, then report, ungate, or retry.

Called by the scheduling cycle. Between `start` and the end of the commit the result counts in the
inventory as assumed, and pod and claims are in flight: no other decision is made about them. The
end is one of: written; stale (decided again, with growing pauses); rejected by the API server
(reported, retried rarely). In every case, pods that had to wait for it are evaluated next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.decide import Decision
from controller.gangs import GangKey
from controller.reconcile.binding.assumed_pods import AssumedPods
from controller.reconcile.binding.claim_commit import ClaimCommitter
from controller.reconcile.binding.claim_writer import Rejected, Stale
from controller.reconcile.binding.commit_slots import CommitSlots
from controller.reconcile.binding.gang_commit import GangCommit
from controller.reconcile.binding.gate import GateKeeper
from controller.reconcile.queueing import Triggers, WaitingPods, rank
from controller.reconcile.runtime import Context, messages
from hami_dra.api.core import Pod
from hami_dra.api.kinds import POD
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import has_our_gate, is_live
from hami_dra.api.resource import ResourceClaim
from hami_dra.kube.backoff import doubled

log = logging.getLogger(__name__)


@dataclass(eq=False)
class BindingCycle:
    context: Context
    committer: ClaimCommitter
    gate: GateKeeper
    waiting: WaitingPods
    triggers: Triggers
    assumed_pods: AssumedPods

    def __post_init__(self) -> None:
        self._settings = settings = self.context.settings.binding
        self._guard = self.context.guard("commit")
        self.slots = CommitSlots(
            settings.commits_at_once, self.context.settings.leadership.write_timeout, settings.slow_commits_at_once
        )
        self._under_way: set[str] = set()
        """UIDs of the pods that are being written."""
        self.context.events.yield_to(lambda: bool(self._under_way))
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def paused_until(self, pod: Pod) -> float:
        """Return when the next commit of the pod may start.

        Whatever wakes the pod, the pause after a failed commit stays in force. Otherwise two pods
        of one claim whose commits fail would wake each other indefinitely.
        """
        return self._not_before.get(pod.metadata.uid, float("-inf"))

    def start_gang(
        self,
        group: asyncio.TaskGroup,
        key: GangKey,
        placed: Sequence[tuple[Pod, Decision]],
        *,
        check: Callable[[], Awaitable[str]],
        done: Callable[[], None],
    ) -> None:
        """Start the commit of members that run together: all of them are written, or none stays.

        `check`: why the gang must not run after all, or empty; called before the gates are lifted.
        `done`: called when all members have ended, whatever the result.
        """
        commit = GangCommit(key, [pod for pod, _ in placed], self.committer, self.slots, check=check, done=done)
        for pod, decision in placed:
            self.start(group, pod, decision, commit)

    def start(self, group: asyncio.TaskGroup, pod: Pod, decision: Decision, gang: GangCommit | None = None) -> None:
        """Start the commit of one pod. `gang`: the commit of its gang, of which it is a part."""
        self._under_way.add(pod.metadata.uid)
        self.waiting.in_flight.begin([pod.metadata.uid, *decision.holdings])
        self.assumed_pods.begin(pod, decision)
        finish = self._guard.run(pod.key, self._finish(pod, decision, gang))
        group.create_task(finish, name=f"commit {pod.key}")

    def abandon(self) -> None:
        """End the term: whatever is still being written delays no event any more."""
        self.context.events.yield_to(lambda: False)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Forget the pause of a pod that has ended or requests something else now. Subscribed by the term."""
        if old is None or old.metadata.uid not in self._not_before:
            return
        if new is None or not is_live(new) or new.metadata.uid != old.metadata.uid or new.spec != old.spec:
            self._forget(old.metadata.uid)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Forget pauses when a claim is created: it may succeed where the one before failed. Subscribed by the term."""
        if old is None and new is not None and self._not_before:
            for pod in self.context.informers.pods_of(new.key):
                self._forget(pod.metadata.uid)

    async def _finish(self, pod: Pod, decision: Decision, gang: GangCommit | None) -> None:
        namespace = pod.metadata.namespace
        try:
            if gang is not None:
                # it holds a slot while it writes, and none while it waits for other members
                await self._commit(pod, decision, gang.commit, gang)
            else:
                async with self.slots.held(namespace):
                    await self._commit(pod, decision, self.committer.commit)
        finally:
            self.triggers.evaluate_all(self.slots.admitted(namespace))
            if gang is not None:
                gang.member_ended()

    async def _commit(
        self,
        pod: Pod,
        decision: Decision,
        write: Callable[[Pod, Decision], Awaitable[Pod]],
        gang: GangCommit | None = None,
    ) -> None:
        started = self.context.clock.monotonic()
        try:
            current = await write(pod, decision)
            self.context.metrics.commit_seconds.observe(self.context.clock.monotonic() - started)
            self._written(pod, decision, current, gang)
        except Stale as error:
            log.info("pod %s: decided again: %s", pod.key, error)
            self._failed(pod, "stale", self._pause(pod))
        except Rejected as error:
            log.warning("pod %s: the API server refuses the allocation: %s", pod.key, error)
            self.context.events.report(POD, pod, messages.warning(messages.BINDING_FAILED, str(error)))
            self._failed(pod, "refused", self._settings.retry_most)
        except Exception as error:
            if not self._guard.contains(pod.key, error):
                raise
            self.context.events.report(POD, pod, messages.internal_error(messages.BINDING_FAILED))
            self._failed(pod, "refused", self._settings.retry_most)
        self._end(pod, decision)

    def _written(self, pod: Pod, decision: Decision, current: Pod, gang: GangCommit | None) -> None:
        """Report it and lift the gate: the informers have the written claims already."""
        self.assumed_pods.end(pod)
        self._forget(pod.metadata.uid)
        self.context.metrics.commits.labels("done").inc()
        self.context.events.report(POD, pod, messages.placed(decision))
        for left in decision.left_out:
            self.context.events.report(POD, pod, messages.left_out(pod, decision.node, left))
            self.context.events.report(POD, left.companions.pod, messages.was_left_out(pod, decision.node, left))
        if has_our_gate(current):
            lane, check = (gang.lane, gang.check) if gang is not None else ("", None)
            self.gate.lift(current, "allocated", placed=True, lane=lane, check=check)

    def _failed(self, pod: Pod, result: str, pause: float) -> None:
        """Decide the pod again after `pause` seconds. `result`: name of the failure in the metric."""
        self.assumed_pods.end(pod)
        self.context.metrics.commits.labels(result).inc()
        self.triggers.released(pod)
        current = self.context.informers.present(pod)
        if current is None or not is_live(current):
            self._forget(pod.metadata.uid)
        else:
            now = self.context.clock.monotonic()
            self._not_before[pod.metadata.uid] = now + pause
            self.waiting.queue.ready(pod.key, rank(current))
            if pause > 0:
                self.waiting.queue.wait(pod.key, now + pause)
            self.waiting.wake.set()

    def _end(self, pod: Pod, decision: Decision) -> None:
        """Evaluate the pods that waited for this commit, and the pod itself if it changed
        meanwhile.

        Our own writes cause events about the pod, too: if everything is as they left it, there is
        nothing to do.
        """
        uid = pod.metadata.uid
        self._under_way.discard(uid)
        put_off = self.waiting.in_flight.end([uid, *decision.holdings])
        self.triggers.evaluate_all(key for key in put_off if key != pod.key or not self._is_as_written(pod))

    def _is_as_written(self, pod: Pod) -> bool:
        current = self.context.informers.present(pod)
        claims = map(self.context.informers.claim, claim_keys(current)) if current is not None else (None,)
        return all(claim is not None and claim.status.allocation is not None for claim in claims)

    def _forget(self, pod_uid: str) -> None:
        self._failures.pop(pod_uid, None)
        self._not_before.pop(pod_uid, None)

    def _pause(self, pod: Pod) -> float:
        """Return 0 the first time, then doubling pauses: most stale decisions are stale once."""
        failures = self._failures.get(pod.metadata.uid, 0)
        self._failures[pod.metadata.uid] = failures + 1
        if failures == 0:
            return 0.0
        return doubled(self._settings.retry_first, failures - 1, self._settings.retry_most)
