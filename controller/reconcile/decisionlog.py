"""The latest decisions, kept so that people can ask why: in memory, bounded in number and bytes, gone with the process.

Filled by the placer at the moment of each decision; read by the page and by `hami-dra explain --controller`. What is read is
made at that moment from what was kept, so that keeping stays cheap.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from controller.explain.model import Explanation

_MOST: Final = 1_000
_MOST_BYTES: Final = 32 << 20


class DecisionLog:
    """The latest decision of each pod; of those the latest `most`."""

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Explanation] = OrderedDict()
        """By key of the pod, oldest first."""
        self._pod_of_claim: dict[str, str] = {}

    def record(self, explanation: Explanation, claims: Iterable[str] = ()) -> None:
        """`claims`: keys of the pod's claims."""
        self._kept[explanation.pod] = explanation
        self._kept.move_to_end(explanation.pod)
        for claim in claims:
            self._pod_of_claim[claim] = explanation.pod

    def of_pod(self, key: str) -> Explanation | None:
        """`ns/name`."""
        return self._kept.get(key)

    def of_claim(self, key: str) -> Explanation | None:
        """`ns/name`: the latest decision on a pod that uses the claim."""
        pod = self._pod_of_claim.get(key)
        return self._kept.get(pod) if pod else None

    def latest(self, most: int) -> list[Explanation]:
        """Newest first."""
        newest = list(reversed(self._kept))[: max(most, 0)]
        return [self._kept[key] for key in newest]
