"""Pods that count on a node before they are bound there: whether, and on which node.

A pod counts where a decision placed it while that decision is being written, or its place is held,
with the devices of the decision; otherwise where its allocated claims pin it. No other
module assumes pods for longer than one synchronous step, so the state is the same as after a
restart, whatever became of a write. The end of a commit and every event about the pod or its claims
ask the claims again (`refresh`).
"""

from controller.decide import Decision
from controller.reconcile.binding.claim_writer import ClaimWriter
from controller.reconcile.runtime import Context, patches
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_live


class AssumedPods:
    def __init__(self, context: Context, claims: ClaimWriter) -> None:
        self._context = context
        self._claims = claims
        self._decided: dict[str, Decision] = {}
        """UID → the decision that counts."""
        self._pinned: dict[str, str] = {}
        """UID → node of its claims."""

    def begin(self, pod: Pod, decision: Decision) -> None:
        """Count the pod and its devices as it was decided, until `end`."""
        self._decided[pod.metadata.uid] = decision
        self._context.inventory.usage.assume(decision.holdings)
        self._context.inventory.assume_pod(self._context.informers.present(pod) or pod, decision.node)

    def end(self, pod: Pod) -> None:
        """Count the pod as its claims say: the decision is written, or has failed."""
        uid = pod.metadata.uid
        self._forget(uid)
        if (present := self._context.informers.present(pod)) is not None:
            self.refresh(present)
        else:
            self._unpin(pod)

    def refresh(self, pod: Pod) -> str:
        """Count the pod as its claims say. Returns the node to which they pin it, or empty."""
        uid, node = pod.metadata.uid, self.pinned_node(pod)
        if node:
            self._pin(pod, node)
        elif not self._unpin(pod):
            return ""
        decided = self._decided.get(uid)
        counts_on = node if decided is None else decided.node
        if not counts_on:
            self._context.inventory.forget_pod(uid)
        elif self._context.inventory.assumed_node(uid) != counts_on:
            self._context.inventory.assume_pod(pod, counts_on)
        return node

    def gone(self, pod: Pod) -> None:
        """Forget a pod that does not exist any more; the inventory does so itself."""
        self._unpin(pod)

    def stop(self) -> None:
        """End the term: count nothing any more."""
        for uid in (*self._decided, *self._pinned):
            self._forget(uid)
            self._context.informers.tenants.arrived(uid)
        self._pinned.clear()

    def _forget(self, uid: str) -> None:
        if (decided := self._decided.pop(uid, None)) is not None:
            for claim in decided.holdings:
                self._context.inventory.forget(claim)
        self._context.inventory.forget_pod(uid)

    def _pin(self, pod: Pod, node: str) -> None:
        uid = pod.metadata.uid
        if self._pinned.get(uid) != node and not pod.spec.node_name:
            self._context.informers.tenants.arrives(pod, node)
        self._pinned[uid] = node

    def _unpin(self, pod: Pod) -> bool:
        """Return whether it was pinned."""
        self._context.informers.tenants.arrived(pod.metadata.uid)
        return self._pinned.pop(pod.metadata.uid, None) is not None

    def pinned_node(self, pod: Pod) -> str:
        """Return the node to which our allocation pins this pod while it is not there, or empty."""
        if not is_live(pod):
            return ""
        for claim in self._context.informers.claims_of(pod):
            node = patches.pinned_node(claim) if self._claims.is_ours(claim) else ""
            if node not in ("", pod.spec.node_name):
                return node
        return ""
