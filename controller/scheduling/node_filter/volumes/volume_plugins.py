"""The volume plugins as filter plugins of the node filter. They share one verdict per pod. Pure."""

from collections.abc import Callable
from typing import Final

import numpy as np

from controller.scheduling.incremental.changes import LruCache
from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from controller.scheduling.node_filter.plugin import PodFilter, PodRefusal
from controller.scheduling.node_filter.volumes.pod_claims import Held, pod_volumes
from controller.scheduling.node_filter.volumes.volume_book import VolumeBook
from controller.scheduling.node_filter.volumes.volume_filters import NOTHING, VolumeFilters, VolumeVerdict
from hami_dra.api import names
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod

CODES: Final = (
    names.NODE_VOLUME_RESTRICTIONS,
    names.NODE_VOLUME_LIMITS,
    names.NODE_VOLUME_BINDING,
    names.NODE_VOLUME_ZONE,
)
"""In kube-scheduler's order."""
_KEPT: Final = 128


class VolumeVerdicts:
    """The latest verdict: the plugins ask about one pod one after the other."""

    def __init__(self, nodes: NodeColumns, book: VolumeBook) -> None:
        self._nodes = nodes
        self._book = book
        self._filters = VolumeFilters(nodes, book)
        self._asked: object = None
        self._verdict = NOTHING
        self._asked_about: tuple[Pod, Placed | None] | None = None
        """Their ids are not given to others while they are referenced."""

    def of(self, pod: Pod, own: Placed | None) -> VolumeVerdict:
        if not pod.spec.volumes:
            return NOTHING
        nodes = self._nodes
        asked = id(pod), id(own), self._book.version, nodes.changes.version, nodes.arrivals
        if asked != self._asked:
            self._verdict = self._filters.of(pod, own)
            self._asked = asked
            self._asked_about = pod, own
        return self._verdict

    def held(self, pod: Pod) -> PodRefusal | None:
        """Return what holds the pod whatever the node offers, or None."""
        held = self.of(pod, None).held
        return _refusal(held) if held is not None else None


class VolumePlugin:
    """One of the four. A filter is kept for pods with equal volumes, such as the replicas that share a
    model.
    """

    def __init__(self, code: str, verdicts: VolumeVerdicts) -> None:
        self._code = code
        self._verdicts = verdicts
        self._filters: LruCache[VolumeFilter] = LruCache(_KEPT)

    def filter_for(self, pod: Pod, own: Placed | None) -> PodFilter | PodRefusal | None:
        if not pod.spec.volumes:
            return None
        verdict = self._verdicts.of(pod, own)
        if verdict.held is not None and _CODE_OF[verdict.held.plugin] == self._code:
            return _refusal(verdict.held)
        for refusal in verdict.refusals:
            if _CODE_OF[refusal.plugin] == self._code:
                key = pod_volumes(pod), pod.metadata.uid if own is not None else ""
                found = self._filters.get(key, lambda: VolumeFilter(self._code))
                found.update(refusal.refused, refusal.reason)
                return found
        return None


class VolumeFilter(PodFilter):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self._reason: Callable[[int], str] = lambda _row: ""

    def update(self, refused: Bools, reason: Callable[[int], str]) -> None:
        self._reason = reason
        if not np.array_equal(refused, self.refused):
            self.refused = refused
            self.version += 1

    def refresh(self) -> None:
        """Nothing to do: it was updated when it was asked for."""

    def sentence(self, pod: Pod, row: int) -> str:  # noqa: ARG002 (of the protocol)
        return f"{_PLUGIN_OF[self.code]}: {self._reason(row)}"


_PLUGIN_OF: Final = dict(
    zip(CODES, ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"), strict=True)
)
_CODE_OF: Final = {plugin: code for code, plugin in _PLUGIN_OF.items()}


def _refusal(held: Held) -> PodRefusal:
    return PodRefusal(_CODE_OF[held.plugin], f"{held.plugin}: {held.why}")
