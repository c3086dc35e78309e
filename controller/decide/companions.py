"""Pending pods that share a claim. All of them run on the node of its allocation, so each is
decided with regard to the others.

Updated incrementally by `reconcile` and by `simulation`; read once per decision. Pods of one shape
are one entry with a count, so a decision costs the same for ten pods on one claim as for a
thousand. Pure.

A claim can be reserved for 256 pods at a time (ResourceClaimReservedForMaxSize). The limit is
enforced by the API server, not here: it refuses the 257th when kube-scheduler binds it, and that
pod stays pending until another one has finished.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct

from controller.cluster.incremental.digests import digest_of
from controller.rules.declared_features import needed_features
from controller.rules.node_ports import host_ports
from controller.rules.volumes.pod_claims import pod_volumes
from hami_dra.api.core import Pod

_NOTHING: Final[dict[Any, Any]] = {}
"""Shared; never changed."""
MOST_SHAPES: Final = 32
"""Shapes of pod per claim that are checked for fit: those of the oldest pods."""

MOST_TERMS: Final = 64
"""Terms and constraints of all companions together. The tables of these have room for them and for
those of the pod itself; else a decision of several turns would begin again in each.
"""


class Companions(Struct, frozen=True):
    """Pods of one shape."""

    pod: Pod
    """The youngest of them: kube-scheduler binds it last."""
    count: int

    @property
    def terms(self) -> int:
        """Number of terms and constraints that count pods and may refuse a node."""
        spec = self.pod.spec
        found = len(spec.topology_spread_constraints)
        if spec.affinity is not None:
            for each in (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity):
                found += len(each.required_during_scheduling_ignored_during_execution) if each is not None else 0
        return found


def grouped(pods: Iterable[Pod]) -> tuple[Companions, ...]:
    """Return the pods by shape, in order of the first pod of each shape."""
    found: dict[bytes, Companions] = {}
    for pod in pods:
        shape = pod_shape(pod)
        found[shape] = Companions(pod, found[shape].count + 1) if shape in found else Companions(pod, 1)
    return tuple(found.values())[:MOST_SHAPES]


def with_few_terms(companions: Sequence[Companions]) -> Sequence[Companions]:
    """Return the first ones, which have at most `MOST_TERMS` together."""
    totals = accumulate([each.terms for each in companions])
    return companions[: sum([total <= MOST_TERMS for total in totals])]


def pod_shape(pod: Pod, *, by_labels: bool = False) -> bytes:
    """Return a digest of everything that decides which nodes fit the pod (except its claims), and
    of its resource requests. `by_labels`: pods that are there keep such pods away by their labels.
    """
    spec = pod.spec
    affinity = spec.affinity
    related = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    read = (
        pod.metadata.namespace,
        pod.metadata.labels if by_labels or related or spec.topology_spread_constraints else None,
        (host_ports(pod), needed_features(pod), pod_volumes(pod)),
        (spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints, spec.overhead),
        [container.resources for container in (*spec.init_containers, *spec.containers)],
        [container.restart_policy for container in spec.init_containers],
        spec.resources,
    )
    return digest_of(read)


class SharedClaims:
    """The runnable pending pods of each claim. Pods are keyed by uid, claims by `namespace/name`.

    The caller leaves out pods of other schedulers and pods behind other scheduling gates: they may
    never run.
    """

    def __init__(self) -> None:
        self._claims: dict[str, Pod | _Sharers] = {}
        """The pod of most claims is the only one."""
        self._keys: dict[str, tuple[str, ...]] = {}

    def add(self, pod: Pod, keys: Iterable[str]) -> None:
        """Add a pending pod that refers to these claims, or update it. Idempotent."""
        uid, keys = pod.metadata.uid, tuple(dict.fromkeys(keys))
        if self._keys.get(uid) != keys:
            self.remove(uid)
            if keys:
                self._keys[uid] = keys
        for key in keys:
            found = self._claims.get(key)
            if found is None or (isinstance(found, Pod) and found.metadata.uid == uid):
                self._claims[key] = pod
                continue
            if isinstance(found, Pod):
                first, found = found, _Sharers()
                found.add(first, alone=len(self._keys[first.metadata.uid]) == 1)
                self._claims[key] = found
            found.add(pod, alone=len(keys) == 1)

    def remove(self, uid: str) -> None:
        """Remove a pod that is bound, finished or deleted."""
        for key in self._keys.pop(uid, ()):
            found = self._claims[key]
            if isinstance(found, _Sharers):
                found.remove(uid)
            if isinstance(found, Pod) or not found.pods:
                del self._claims[key]

    def uids(self, keys: Iterable[str]) -> list[Collection[str]]:
        """Return the uids of the pods that refer to each of the claims."""
        found = [each for key in keys if (each := self._claims.get(key)) is not None]
        return [(each.metadata.uid,) if isinstance(each, Pod) else each.pods.keys() for each in found]

    def companions(
        self, pod: Pod, keys: Sequence[str], counts: Callable[[str], bool] = lambda _uid: False
    ) -> tuple[Companions, ...]:
        """Return the other pods that refer to any of the claims, by shape.

        `counts`: whether the inventory already counts the pod with this uid on some node. Such a
        pod is an entry of its own, because its usage there must not count against itself.
        """
        shared = [each for key in keys if isinstance(each := self._claims.get(key), _Sharers) and len(each.pods) > 1]
        if not shared:
            return ()
        if len(shared) == 1:
            return shared[0].without(pod, counts)
        others = {uid: other for each in shared for uid, other in each.pods.items() if uid != pod.metadata.uid}
        placed = [other for uid, other in others.items() if counts(uid)]
        rest = grouped(other for uid, other in others.items() if not counts(uid))
        return (*rest, *(Companions(other, 1) for other in placed))[:MOST_SHAPES]


class _Sharers:
    """The pods that share one claim. The tables are made on demand."""

    __slots__ = ("_by_shape", "_new", "_several", "_shapes", "pods")

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self._new: dict[str, None] | None = None
        """Pods whose shape is not computed yet; None: no shape is."""
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
        """Return all pods except this one, by shape."""
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
