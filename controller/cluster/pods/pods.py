"""Pods that count on nodes: those that are bound, and those that a decision has placed there.

Fed by the inventory. Adds up their requests by node (`NodeColumns`), and reports each pod that
begins or ends to count to the filter plugins (`PodListener`).
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from controller.cluster.incremental.changes import UidTracker
from controller.cluster.nodes.nodes import NodeColumns, Placed, place
from controller.cluster.pods.resized_requests import counted_requests, resize_state
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_bound, is_done, is_finished

_NONE: Final[Mapping[str, tuple[Placed, Hashable]]] = MappingProxyType({})


class PodListener(Protocol):
    """Hears of every pod that counts on a node: bound to it, or placed there by a decision."""

    def add(self, uid: str, placed: Placed) -> None: ...

    def remove(self, uid: str, placed: Placed) -> None:
        """`placed`: the object that was added."""


class PodBook:
    """`spread_shape`: what pods with equal topology spread have in common; None: nothing hard."""

    def __init__(
        self,
        nodes: NodeColumns,
        listeners: Sequence[PodListener],
        spread_shape: Callable[[Pod], Hashable | None] = lambda _: None,
    ) -> None:
        self._nodes = nodes
        self._spread_shape = spread_shape
        self._listeners = listeners
        self.resizes_by_sums = True
        """Pods that are being resized count as in Kubernetes 1.37, else as in 1.36."""
        self._known = UidTracker()
        self._bound: dict[str, Placed] = {}
        self._assumed: dict[str, Placed] = {}
        self._spreading: dict[str, dict[str, tuple[Placed, Hashable]]] = {}
        """Namespace → uid → assumed pod with a hard topology spread, and its shape."""

    def placed(self, uid: str) -> Placed | None:
        """Return the placement that counts for the pod, or None."""
        return self._bound.get(uid) or self._assumed.get(uid)

    def assumed_node(self, uid: str) -> str:
        """Return the node on which an unbound pod counts, or an empty text."""
        placed = self._assumed.get(uid)
        return placed.node if placed is not None else ""

    def unbound(self) -> Collection[Placed]:
        """Return the pods that count where a decision placed them. A live view."""
        return self._assumed.values()

    def spreading(self, namespace: str) -> Collection[tuple[Placed, Hashable]]:
        """Return the unbound pods of a namespace that have a hard topology spread, and its shape. A live view."""
        return self._spreading.get(namespace, _NONE).values()

    def bound(self, uid: str) -> Pod | None:
        """Return the pod if it is bound and has not finished."""
        placed = self._bound.get(uid)
        return placed.pod if placed is not None else None

    def changed(self, old: Pod | None, new: Pod | None) -> list[str]:
        """Bound pods count until they finish or go. An assumed pod counts with its newest labels and
        requests until it is bound or gone.

        Returns the uids of pods that are over: gone, or done with what they use.
        """
        over = self._known.gone(old, new)
        for gone in over:
            self._unbind(gone)
            self.forget(gone)
        if new is None:
            return over
        uid = new.metadata.uid
        if is_done(new):
            over.append(uid)
        bound_now = is_bound(new)
        if new.spec.node_name or is_finished(new):
            self.forget(uid)
        assumed, bound = self._assumed.get(uid), self._bound.get(uid)
        if assumed is not None and not _count_alike(assumed.pod, new):
            self.assume(new, assumed.node)
        if bound is not None and bound_now and _count_alike(bound.pod, new):
            return over
        self._unbind(uid)
        if bound_now:
            requests = counted_requests(new, by_sums=self.resizes_by_sums)
            self._bind(uid, Placed(new, new.spec.node_name, requests))
        return over

    def assume(self, pod: Pod, node: str) -> None:
        uid = pod.metadata.uid
        self.forget(uid)
        if uid not in self._bound:
            self._assume(uid, place(pod, node))

    def _assume(self, uid: str, placed: Placed) -> None:
        self._assumed[uid] = placed
        if (shape := self._spread_shape(placed.pod)) is not None:
            self._spreading.setdefault(placed.pod.metadata.namespace, {})[uid] = placed, shape
        self._count(uid, placed)

    def forget(self, uid: str) -> None:
        placed = self._assumed.pop(uid, None)
        if placed is not None:
            if (others := self._spreading.get(namespace := placed.pod.metadata.namespace)) is not None:
                others.pop(uid, None)
                if not others:
                    del self._spreading[namespace]
            self._uncount(uid, placed)

    def take_away(self, uid: str) -> Callable[[], None] | None:
        """Let a pod count nowhere, bound or assumed. Return what makes it count as before, which must
        come before any event about the pod; None where it counts nowhere.
        """
        if (bound := self._bound.get(uid)) is not None:
            self._unbind(uid)
            return lambda: self._bind(uid, bound)
        if (assumed := self._assumed.get(uid)) is not None:
            self.forget(uid)
            return lambda: self._assume(uid, assumed)
        return None

    def _bind(self, uid: str, placed: Placed) -> None:
        self._bound[uid] = placed
        self._count(uid, placed)

    def _unbind(self, uid: str) -> None:
        placed = self._bound.pop(uid, None)
        if placed is not None:
            self._uncount(uid, placed)

    def _count(self, uid: str, placed: Placed) -> None:
        self._nodes.use(placed.node, placed.requests, +1)
        for each in self._listeners:
            each.add(uid, placed)

    def _uncount(self, uid: str, placed: Placed) -> None:
        self._nodes.use(placed.node, placed.requests, -1)
        for each in self._listeners:
            each.remove(uid, placed)


def _count_alike(one: Pod, other: Pod) -> bool:
    """Return whether the pods mean the same to their node and to other pods: status, annotations
    and so on do not matter.
    """
    return (
        one.spec == other.spec
        and resize_state(one) == resize_state(other)
        and one.metadata.labels == other.metadata.labels
        and (one.metadata.deletion_timestamp is None) == (other.metadata.deletion_timestamp is None)
    )
