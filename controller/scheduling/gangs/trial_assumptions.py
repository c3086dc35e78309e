"""Decisions on trial: placed members count in the inventory until the trial ends.

Used by `gang_search` to decide several pods as one; preemption and moves try their plans on it. The
inventory is changed in place, which costs the devices that are placed and nothing for the rest of
the cluster. Pure.
"""

from controller.scheduling.decide.answers import Decision
from controller.scheduling.inventory.inventory import Inventory
from hami_dra.api.core import Pod


class Trial:
    """What is assumed on it is forgotten by `close`: use it with `contextlib.closing`.

    Between two portions of a long trial other parts of the program may run, and objects may come
    and go. Call `pause` before and `resume` after them.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._assumed: dict[str, tuple[str, ...]] = {}
        """By uid of the pod: the uids of its claims."""
        self._lifted: dict[str, tuple[Pod, str]] = {}
        """By uid: pods that counted on a node before the trial, and where."""
        self._paused = False

    def lift(self, pod: Pod) -> None:
        """Let the pod count nowhere until the end of the trial: its own usage must not stand in its
        way when it is decided again.
        """
        node = self._inventory.assumed_node(pod.metadata.uid)
        if node:
            self._lifted.setdefault(pod.metadata.uid, (pod, node))
            self._inventory.forget_pod(pod.metadata.uid)

    def assume(self, pod: Pod, decision: Decision) -> None:
        """Count the pod and its devices where they were decided."""
        self._assumed[pod.metadata.uid] = tuple([entry.claim.metadata.uid for entry in decision.allocations])
        for entry in decision.allocations:
            self._inventory.assume(entry.claim.metadata.uid, entry.allocation)
        self._inventory.assume_pod(pod, decision.node)

    def forget(self, pod_uid: str) -> None:
        """Take one assumption back."""
        if not self._inventory.assumed_node(pod_uid):
            # It went, or was bound, while the trial paused: where it counted before does not matter.
            self._lifted.pop(pod_uid, None)
        self._inventory.forget_pod(pod_uid)
        for uid in self._assumed.pop(pod_uid):
            self._inventory.forget(uid)

    def pause(self) -> None:
        """Let lifted pods that have no place on trial count where they did."""
        self._paused = True
        for uid, (pod, node) in self._lifted.items():
            if uid not in self._assumed:
                self._inventory.assume_pod(pod, node)

    def resume(self) -> None:
        """Lift them again, but for those that went or were bound meanwhile. Idempotent."""
        if not self._paused:
            return
        self._paused = False
        for uid in [*self._lifted]:
            if uid in self._assumed:
                continue
            if self._inventory.assumed_node(uid):
                self._inventory.forget_pod(uid)
            else:
                del self._lifted[uid]

    def close(self) -> None:
        """Take everything back. Idempotent."""
        self.resume()
        for uid in reversed([*self._assumed]):
            self.forget(uid)
        for pod, node in self._lifted.values():
            self._inventory.assume_pod(pod, node)
        self._lifted.clear()
