"""Decisions on trial: placed members count in the inventory until the trial ends.

Used by `gang_search` to decide several pods as one; preemption and moves try their plans on it. The
inventory is changed in place, which costs the devices that are placed and nothing for the rest of
the cluster. Pure.
"""

from collections.abc import Collection

from controller.decide.answers import Decision
from controller.inventory.inventory import Inventory
from hami_dra.api.core import Pod


class Trial:
    """What is assumed on it is forgotten by `close`: use it with `contextlib.closing`. It may be
    used again afterwards.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._on_trial = inventory.volumes.on_trial
        self._assumed: dict[str, tuple[str, ...]] = {}
        """By uid of the pod: the uids of its claims."""
        self._lifted: dict[str, tuple[Pod, str]] = {}
        """By uid: pods that counted on a node before the trial, and where."""
        self._away: dict[str, Collection[str]] = {}
        """By uid: bound pods that were taken away, and their claims."""

    def lift(self, pod: Pod) -> None:
        """Let the pod count nowhere until the end of the trial: its own usage must not stand in its
        way when it is decided again.
        """
        node = self._inventory.assumed_node(pod.metadata.uid)
        if node:
            self._lifted.setdefault(pod.metadata.uid, (pod, node))
            self._on_trial.add(pod.metadata.uid)
            self._inventory.forget_pod(pod.metadata.uid)

    def take_away(self, pod_uid: str, claim_uids: Collection[str]) -> None:
        """Stop counting a bound pod and its claims until the end of the trial: a victim, or a pod
        that moves. Such a trial must end before anything else runs.

        `claim_uids`: those that no other pod uses.
        """
        self._on_trial.add(pod_uid)
        self._inventory.take_away(pod_uid, claim_uids)
        self._away[pod_uid] = claim_uids

    def assume(self, pod: Pod, decision: Decision) -> None:
        """Count the pod and its devices where they were decided."""
        for entry in decision.allocations:
            self._inventory.assume(entry.claim.metadata.uid, entry.allocation)
        uids = [entry.claim.metadata.uid for entry in decision.allocations]
        self._assumed[pod.metadata.uid] = tuple(uids)
        self._on_trial.add(pod.metadata.uid)
        self._inventory.assume_pod(pod, decision.node)

    def forget(self, pod_uid: str) -> None:
        """Take one assumption back."""
        self._inventory.forget_pod(pod_uid)
        if pod_uid not in self._lifted:
            self._on_trial.discard(pod_uid)
        for uid in self._assumed.pop(pod_uid):
            self._inventory.forget(uid)

    def close(self) -> None:
        """Take everything back. Idempotent."""
        for uid in reversed([*self._assumed]):
            self.forget(uid)
        for uid in reversed([*self._away]):
            self._inventory.bring_back(uid, self._away.pop(uid))
            self._on_trial.discard(uid)
        for pod, node in self._lifted.values():
            self._inventory.assume_pod(pod, node)
            self._on_trial.discard(pod.metadata.uid)
        self._lifted.clear()
