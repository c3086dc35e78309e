"""Trials: decisions on the cluster as it would be with some pods gone, placed, or devices held.

Gangs place their members on one, preemption and moves try their plans on it. The inventory is
changed in place, which costs the devices and pods that are touched and nothing for the rest of the
cluster, and is as before at the end. Trials may be nested. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Self

from controller.cluster.pods.pods import PodBook
from controller.inventory.ledger import Holding, Ledger
from controller.inventory.model import DeviceId
from hami_dra.api.core import Pod

_HELD: Final = "held on trial: "


class Trial:
    """A context: what was done on it is undone at its end. No event may come before.

    `on_trial`: see `VolumeBook`.

        with inventory.trial() as trial:
            trial.remove(victim.metadata.uid, uids_of_its_claims)
            answer = decide(inventory, request, options)
            trial.place(request.pod, answer.node, answer.holdings)
    """

    def __init__(self, ledger: Ledger, pods: PodBook, on_trial: set[str]) -> None:
        self._ledger = ledger
        self._pods = pods
        self._on_trial = on_trial
        self._undo: dict[str, Callable[[], None] | None] = {}
        """By uid of the pod: makes it count as before the trial; None where it counted nowhere."""
        self._known = frozenset(on_trial)
        """Pods on trials around this one."""
        self._before: dict[str, tuple[Holding, ...] | None] = {}
        """By uid of the claim: the assumption before the trial."""
        self._removed: set[str] = set()
        """Claims that hold nothing unless they are placed again."""
        self._placed: dict[str, Collection[str]] = {}
        """By uid of the pod: its claims that were placed with it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def remove(self, pod_uid: str, claim_uids: Collection[str] = ()) -> None:
        """Let a pod count nowhere, bound or assumed, and its claims hold nothing: a victim, a pod that
        moves, or one that must not stand in its own way when it is decided.

        `claim_uids`: those that no other pod uses. Not for a pod that was placed on this trial.
        """
        self.remove_all((pod_uid,), claim_uids)

    def remove_all(self, pod_uids: Iterable[str], claim_uids: Collection[str]) -> None:
        """`remove` several pods. `claim_uids`: those that none but these pods use."""
        for uid in pod_uids:
            self._touch(uid)
        self._removed.update(claim_uids)
        self._assume(dict.fromkeys(claim_uids, ()))

    def hold(self, devices: Iterable[DeviceId]) -> None:
        """Count these devices as wholly in use."""
        self._assume({_HELD + str(device): (Holding(device, None),) for device in devices})

    def place(self, pod: Pod, node: str, holdings: Mapping[str, tuple[Holding, ...]]) -> None:
        """Count a pod on a node, and what its claims hold (by their uid), as `Decision` says."""
        uid = pod.metadata.uid
        self._touch(uid)
        self._pods.assume(pod, node)
        self._placed[uid] = holdings.keys()
        self._assume(holdings)

    def take_back(self, pod_uid: str) -> None:
        """Undo `place`: the pod counts nowhere, and its claims hold what they held before."""
        self._pods.forget(pod_uid)
        claims = self._placed.pop(pod_uid)
        self._ledger.assume({uid: () if uid in self._removed else self._before[uid] for uid in claims})

    def close(self) -> None:
        """Undo everything. Idempotent."""
        for uid in self._placed:
            self._pods.forget(uid)
        self._ledger.assume(self._before)
        for undo in reversed(self._undo.values()):
            if undo is not None:
                undo()
        self._on_trial.difference_update(self._undo.keys() - self._known)
        for kept in (self._placed, self._before, self._undo, self._removed):
            kept.clear()

    def _touch(self, pod_uid: str) -> None:
        """Note how a pod counts, and let it count nowhere, once."""
        if pod_uid not in self._undo:
            self._on_trial.add(pod_uid)
            self._undo[pod_uid] = self._pods.take_away(pod_uid)

    def _assume(self, holdings: Mapping[str, tuple[Holding, ...]]) -> None:
        for uid in holdings:
            self._before.setdefault(uid, self._ledger.assumed(uid))
        self._ledger.assume(holdings)
