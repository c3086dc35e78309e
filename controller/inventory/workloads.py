"""What the pods of the cluster ask for, counted by shape: where the policy `fgd` learns which requests are typical.

Fed by the inventory with every pod and claim it hears of; read by `controller.scoring.typical`. A pod counts from when it and all
its claims are known until it is over. Kept by difference: feeding is a note in a set, shapes are made when somebody asks.
Of a pod that is over nothing is kept, whether anybody ever asks or not.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

import msgspec

from controller.inventory.podresources import pod_requests
from hami_dra.api.core import Pod, PodResourceClaim
from hami_dra.api.podstate import is_finished
from hami_dra.api.resource import ResourceClaim


class Shape(NamedTuple):
    """Pods of one shape ask for the same CPU and, claim by claim, for the same devices."""

    cpu: int
    """Millicores."""
    claims: tuple[bytes, ...]
    """JSON of `spec` of each claim, in the pod's order; `Workloads.sample` gives a claim for it."""


class Workloads:
    def __init__(self) -> None:
        self.news = 0
        """Grows whenever a pod begins to count, as of the last `counts`, or counts no longer."""
        self._pods: dict[str, Pod] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._dirty: set[str] = set()
        """Uids of pods whose shape is to be made again; all of them are in `_pods`."""
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        """Claim that is not known yet → uids of the pods that name it."""
        self._waits: dict[str, str] = {}
        """The other way round."""
        self._shapes: dict[str, Shape] = {}
        self._counts: Counter[Shape] = Counter()
        self._samples: dict[bytes, tuple[ResourceClaim, int]] = {}
        """JSON of a spec → a claim that has it, and how many shapes of `_counts` use it."""

    # -- feeds -------------------------------------------------------------------------------------------------------

    def pod_gone(self, uid: str) -> None:
        if self._pods.pop(uid, None) is None:
            return
        self._dirty.discard(uid)
        self._wait_no_more(uid)
        self._recount(uid)

    def pod_seen(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if is_finished(pod):
            self.pod_gone(uid)
            return
        before = self._pods.get(uid)
        self._pods[uid] = pod
        if before is None or uid not in self._shapes or before.spec.containers != pod.spec.containers:
            self._dirty.add(uid)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """The spec of a claim never changes; another may take its name."""
        if new is None:
            if old is not None and old.key in self._claims and self._claims[old.key].metadata.uid == old.metadata.uid:
                del self._claims[old.key]
            return
        key = new.key
        self._claims[key] = new
        waiting = self._waiting.pop(key, ())
        self._dirty.update(waiting)
        for uid in waiting:
            del self._waits[uid]

    # -- reading -----------------------------------------------------------------------------------------------------

    def counts(self) -> Counter[Shape]:
        """How many pods have each shape. Not to be changed by the caller."""
        for uid in sorted(self._dirty):
            self._recount(uid)
        self._dirty.clear()
        return self._counts

    def sample(self, spec: bytes) -> ResourceClaim:
        """A claim whose spec is this JSON, for one that `counts` knows."""
        return self._samples[spec][0]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _wait_no_more(self, uid: str) -> None:
        key = self._waits.pop(uid, None)
        if key is not None:
            self._waiting[key].discard(uid)
            if not self._waiting[key]:
                del self._waiting[key]

    def _recount(self, uid: str) -> None:
        pod = self._pods.get(uid)
        shape = self._shape_of(pod) if pod is not None else None
        before = self._shapes.pop(uid, None)
        if shape is not None:
            self._shapes[uid] = shape
        if shape == before:
            return
        self.news += 1
        if shape is not None:
            self._counts[shape] += 1
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
                for spec in before.claims:
                    sample, users = self._samples[spec]
                    if users > 1:
                        self._samples[spec] = sample, users - 1
                    else:
                        del self._samples[spec]

    def _shape_of(self, pod: Pod) -> Shape | None:
        claims = []
        for entry in pod.spec.resource_claims:
            key = _claim_key(pod, entry)
            if key is None:
                continue
            if not key:  # it is still to be generated; the pod's status will name it
                return None
            claim = self._claims.get(key)
            if claim is None:
                # a shape once made stays: claims of a pod that is being deleted may go before it
                if pod.metadata.uid in self._shapes:
                    return self._shapes[pod.metadata.uid]
                self._wait_no_more(pod.metadata.uid)
                self._waiting[key].add(pod.metadata.uid)
                self._waits[pod.metadata.uid] = key
                return None
            claims.append(claim)
        shape = Shape(
            max(pod_requests(pod)["cpu"], 0), tuple(msgspec.json.encode(claim.spec, order="sorted") for claim in claims)
        )
        if shape not in self._counts:
            for spec, claim in zip(shape.claims, claims, strict=True):
                users = self._samples[spec][1] if spec in self._samples else 0
                # as it was asked for, whatever it was given
                self._samples[spec] = ResourceClaim(metadata=claim.metadata, spec=claim.spec), users + 1
        return shape


def _claim_key(pod: Pod, entry: PodResourceClaim) -> str | None:
    """None: the pod's status says that no claim is needed. Empty: it does not say yet."""
    name = entry.resource_claim_name
    if name is None:
        names = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        name = names.get(entry.name, "")
        if not name:
            return name
    return f"{pod.metadata.namespace}/{name}"
