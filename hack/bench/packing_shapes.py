"""What the pods of the replay ask for, counted by shape: where `fgd` learns which requests are
typical.

Fed by `hack.bench.packing_replay` with every pod that comes and leaves; read by
`hack.bench.packing_typical`.
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from controller.cluster.pod_resources import pod_requests
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim


class Shape(NamedTuple):
    """Pods of one shape ask for the same CPU and, claim by claim, for the same devices."""

    cpu: int
    """Millicores."""
    claims: tuple[bytes, ...]
    """JSON of `spec` of each claim, in the pod's order; `PodShapes.sample` gives a claim for it."""


class PodShapes:
    """`counts`: how many of the present pods have each shape."""

    def __init__(self) -> None:
        self.news = 0
        """Grows whenever a pod comes or leaves."""
        self.counts: Counter[Shape] = Counter()
        self._shapes: dict[str, Shape] = {}
        self._samples: dict[bytes, ResourceClaim] = {}

    def add(self, pod: Pod, claims: tuple[ResourceClaim, ...]) -> None:
        specs = tuple(msgspec.json.encode(claim.spec, order="sorted") for claim in claims)
        shape = Shape(max(pod_requests(pod)["cpu"], 0), specs)
        self._samples.update(zip(specs, claims, strict=True))
        self._shapes[pod.metadata.uid] = shape
        self.counts[shape] += 1
        self.news += 1

    def remove(self, pod: Pod) -> None:
        shape = self._shapes.pop(pod.metadata.uid)
        self.counts[shape] -= 1
        if not self.counts[shape]:
            del self.counts[shape]
        self.news += 1

    def sample(self, spec: bytes) -> ResourceClaim:
        """Return a claim whose spec is this JSON, one that `counts` knows."""
        return self._samples[spec]
