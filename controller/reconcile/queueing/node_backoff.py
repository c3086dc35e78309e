"""Backoff of nodes that kube-scheduler refused for a pod, so that the next decision avoids them.
Pure.

A refusal ends after a time that doubles with every refusal of the same pair, or when the node
changes in a way that may matter (allocatable, labels, taints, its pods). From the second refusal on
it does not end before a floor that doubles, too, so that a busy node does not make the pod go round
in circles.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from hami_dra.kube.backoff import doubled
from hami_dra.kube.store import Index

_FLOOR_FIRST: Final = 15.0


class _Refusal(Struct):
    reason: str
    times: int
    until: float
    floor: float
    """Time before which a change of the node does not end it."""


class NodeBackoff:
    """The refusals. Times are seconds of the monotonic clock. Pods by UID, nodes by name."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._by_pod: dict[str, dict[str, _Refusal]] = defaultdict(dict)
        self._by_node = Index()
        self._settling: dict[str, float] = {}

    def settle(self, pod_uid: str, now: float, until: float) -> None:
        """Decide nothing about the pod before `until`: kube-scheduler is still updating it."""
        self._settling = {uid: end for uid, end in self._settling.items() if now < end} | {pod_uid: until}

    def settling(self, pod_uid: str, now: float) -> float | None:
        """Return the end of that time, or None."""
        until = self._settling.get(pod_uid)
        return until if until is not None and now < until else None

    def add(self, pod_uid: str, node: str, reason: str, now: float) -> None:
        earlier = self._by_pod[pod_uid].get(node)
        times = earlier.times + 1 if earlier else 1
        floor = now if times == 1 else now + doubled(_FLOOR_FIRST, times - 2, self._most)
        until = now + doubled(self._first, times - 1, self._most)
        self._by_pod[pod_uid][node] = _Refusal(reason, times, until, floor)
        self._by_node.add(node, pod_uid)

    def nodes(self, pod_uid: str, now: float) -> dict[str, str]:
        """Return node → reason, for refusals still in force."""
        return {node: entry.reason for node, entry in self._by_pod.get(pod_uid, {}).items() if now < entry.until}

    def times(self, pod_uid: str) -> dict[str, int]:
        """Return node → how often it was refused for the pod, refusals that ended included."""
        return {node: entry.times for node, entry in self._by_pod.get(pod_uid, {}).items()}

    def counts(self, pod_uids: Collection[str], now: float) -> Counter[str]:
        """Return node → number of these pods for which it is refused."""
        return Counter(node for uid in self._by_pod if uid in pod_uids for node in self.nodes(uid, now))

    def next_end(self, pod_uid: str, now: float) -> float:
        """Return when the first of them expires; infinity if there is none."""
        ends = [entry.until for entry in self._by_pod.get(pod_uid, {}).values() if now < entry.until]
        return min(ends, default=float("inf"))

    def node_changed(self, node: str, now: float) -> bool:
        """Return whether some pod may try the node again now. Others may at their floor."""
        freed = False
        for uid in self._by_node.keys(node):
            entry = self._by_pod[uid][node]
            if now < entry.until:
                entry.until = max(now, entry.floor)
                freed = freed or entry.until == now
        return freed

    def lift(self, pod_uid: str, node: str, now: float) -> None:
        """Forget a refusal: kube-scheduler itself made room there for this pod."""
        if (entry := self._by_pod.get(pod_uid, {}).get(node)) is not None:
            entry.until = min(entry.until, now)

    def pod_gone(self, pod_uid: str) -> None:
        self._settling.pop(pod_uid, None)
        for node in self._by_pod.pop(pod_uid, {}):
            self._by_node.discard(node, pod_uid)
