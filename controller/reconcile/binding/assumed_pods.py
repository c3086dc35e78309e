"""Pods that count on a node before they are bound there: whether, and on which node.

A pod counts where a decision placed it while that decision is being written, and otherwise where
its allocated claims pin it. Nobody else assumes pods for longer than one synchronous step, so the
state is the same as after a restart, whatever became of a write. The end of a commit and every
event about the pod or its claims ask the claims again (`refresh`).
"""

from controller.reconcile.binding.claim_writer import ClaimWriter
from controller.reconcile.runtime import Context, patches
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_live


class AssumedPods:
    def __init__(self, context: Context, claims: ClaimWriter) -> None:
        self._context = context
        self._claims = claims
        self._committing: dict[str, str] = {}
        """UID → node of the decision that is being written."""
        self._pinned: dict[str, str] = {}
        """UID → node of its claims."""

    def begin(self, pod: Pod, node: str) -> None:
        """Count the pod on the node until `end`."""
        self._committing[pod.metadata.uid] = node
        self._context.inventory.assume_pod(self._context.informers.present(pod) or pod, node)

    def end(self, pod: Pod) -> None:
        """Count the pod as its claims say: the decision is written, or has failed."""
        uid = pod.metadata.uid
        self._committing.pop(uid, None)
        self._context.inventory.forget_pod(uid)
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
        counts_on = self._committing.get(uid, node)
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
        for uid in (*self._committing, *self._pinned):
            self._context.inventory.forget_pod(uid)
            self._context.informers.tenants.arrived(uid)
        self._committing.clear()
        self._pinned.clear()

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
