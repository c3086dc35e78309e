"""Pending pods that share a claim: all run on the node that it is allocated on, so each is decided with a view to the others.

Kept by `reconcile` and by `simulation`, by difference; read once per decision. Pods of one shape are one entry with a count, so
a decision costs the same for ten pods on one claim as for a thousand. Pure.

A claim can be reserved for 256 pods at a time (ResourceClaimReservedForMaxSize). What is beyond is not ours to refuse: the API
server does, when kube-scheduler binds the 257th, which then stays pending until one of the others is over.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.scheduling.inventory.digests import digest_of
from hami_dra.api.core import Pod

_NOTHING: Final[dict[Any, Any]] = {}
"""Shared; never changed."""
MOST_SHAPES: Final = 32
"""Of so many shapes of pod on one claim, those of the oldest pods, it is asked whether they fit."""


@dataclass(frozen=True, slots=True)
class Companions:
    """Pods of one shape."""

    pod: Pod
    """The youngest of them: kube-scheduler binds it last."""
    count: int


def grouped(pods: Iterable[Pod]) -> tuple[Companions, ...]:
    """By shape, in order of their first pods."""
    found: dict[bytes, Companions] = {}
    for pod in pods:
        shape = pod_shape(pod)
        found[shape] = Companions(pod, found[shape].count + 1) if shape in found else Companions(pod, 1)
    return tuple(found.values())[:MOST_SHAPES]


def pod_shape(pod: Pod) -> bytes:
    """A digest of all that decides which nodes may take the pod, claims apart, and how much of them it uses."""
    spec = pod.spec
    read = (
        pod.metadata.namespace,
        pod.metadata.labels if spec.topology_spread_constraints else None,
        (spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints, spec.overhead),
        [container.resources for container in (*spec.init_containers, *spec.containers)],
        [container.restart_policy for container in spec.init_containers],
        spec.resources,
    )
    return digest_of(read)


class SharedClaims:
    """Which pending pods that could run refer to which claims. Pods are known by uid, claims by `namespace/name`.

    Whoever keeps it leaves out pods of other schedulers and pods behind other scheduling gates: they may never run.
    """

    def __init__(self) -> None:
        self._claims: dict[str, _Sharers] = {}
        self._keys: dict[str, tuple[str, ...]] = {}

    def add(self, pod: Pod, keys: Iterable[str]) -> None:
        """It is pending and refers to these claims. Again, after it has changed, as often as you like."""
        uid, keys = pod.metadata.uid, tuple(dict.fromkeys(keys))
        if self._keys.get(uid) != keys:
            self.remove(uid)
            if keys:
                self._keys[uid] = keys
        for key in keys:
            self._claims.setdefault(key, _Sharers()).add(pod, alone=len(keys) == 1)

    def remove(self, uid: str) -> None:
        """It is bound, finished or gone."""
        for key in self._keys.pop(uid, ()):
            sharers = self._claims[key]
            sharers.remove(uid)
            if not sharers.pods:
                del self._claims[key]

    def uids(self, keys: Iterable[str]) -> list[Collection[str]]:
        """Who refers to each of the claims."""
        return [sharers.pods.keys() for key in keys if (sharers := self._claims.get(key)) is not None]

    def companions(
        self, pod: Pod, keys: Sequence[str], counts: Callable[[str], bool] = lambda _uid: False
    ) -> tuple[Companions, ...]:
        """Return the other pods that refer to any of the claims, by shape.

        `counts`: whether the inventory already counts a pod on some node, by uid. Such a pod has a shape of its own, for it must
        not be in its own way there.
        """
        shared = [each for key in keys if (each := self._claims.get(key)) is not None and len(each.pods) > 1]
        if not shared:
            return ()
        if len(shared) == 1:
            return shared[0].without(pod, counts)
        others = {uid: other for each in shared for uid, other in each.pods.items() if uid != pod.metadata.uid}
        placed = [other for uid, other in others.items() if counts(uid)]
        rest = grouped(other for uid, other in others.items() if not counts(uid))
        return (*rest, *(Companions(other, 1) for other in placed))[:MOST_SHAPES]


class _Sharers:
    """Of one claim. Most claims have one pod, so what tells pods apart is made when somebody asks for companions."""

    __slots__ = ("_by_shape", "_new", "_several", "_shapes", "pods")

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self._new: dict[str, None] | None = None
        """Pods whose shape is not known yet; None: that of none is."""
        self._shapes: dict[str, bytes] = _NOTHING
        self._by_shape: dict[bytes, dict[str, None]] = _NOTHING
        self._several: dict[str, None] = _NOTHING
        """Pods with more than one claim: the inventory may count them already."""

    def add(self, pod: Pod, *, alone: bool) -> None:
        uid = pod.metadata.uid
        before = self.pods.get(uid)
        self.pods[uid] = pod
        if before is not None and before.spec == pod.spec and before.metadata.labels == pod.metadata.labels:
            return
        if self._new is not None:
            self._unfile(uid)
            self._new[uid] = None
        if not alone:
            if self._several is _NOTHING:
                self._several = {}
            self._several[uid] = None

    def remove(self, uid: str) -> None:
        del self.pods[uid]
        self._several.pop(uid, None)
        if self._new is not None:
            self._new.pop(uid, None)
            self._unfile(uid)

    def without(self, pod: Pod, counts: Callable[[str], bool]) -> tuple[Companions, ...]:
        """All but this pod, by shape."""
        if self._new is None:
            self._new, self._shapes, self._by_shape = dict.fromkeys(self.pods), {}, {}
        for uid in self._new:
            shape = self._shapes[uid] = pod_shape(self.pods[uid])
            self._by_shape.setdefault(shape, {})[uid] = None
        self._new.clear()
        apart = [uid for uid in self._several if uid != pod.metadata.uid and counts(uid)]
        left_out = {uid: self._shapes[uid] for uid in (pod.metadata.uid, *apart) if uid in self._shapes}
        found = []
        for shape, uids in self._by_shape.items():
            out = [uid for uid, its_shape in left_out.items() if its_shape == shape] if left_out else []
            if len(uids) > len(out):
                sample = next(uid for uid in reversed(uids) if uid not in out)
                found.append(Companions(self.pods[sample], len(uids) - len(out)))
            if len(found) == MOST_SHAPES:
                break
        return (*found, *(Companions(self.pods[uid], 1) for uid in apart))[:MOST_SHAPES]

    def _unfile(self, uid: str) -> None:
        shape = self._shapes.pop(uid, None)
        if shape is not None:
            self._by_shape[shape].pop(uid)
            if not self._by_shape[shape]:
                del self._by_shape[shape]
