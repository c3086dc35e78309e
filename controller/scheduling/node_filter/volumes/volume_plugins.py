"""The volume plugins as filter plugins of the node filter. They share one verdict per pod. Pure."""

from typing import Final

import numpy as np

from controller.scheduling.incremental.digests import digest_of
from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from controller.scheduling.node_filter.plugin import PodFilter, PodRefusal
from controller.scheduling.node_filter.pod_shapes import PodShapes
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


class VolumeVerdicts:
    """The latest verdict: the plugins ask about one pod one after the other."""

    def __init__(self, nodes: NodeColumns, book: VolumeBook) -> None:
        self._nodes = nodes
        self._book = book
        self._filters = VolumeFilters(nodes, book)
        self._latest = NOTHING
        self._key: object = None
        self._about: tuple[Pod, Placed | None] | None = None
        """What it is about; kept, so that no other object gets its `id`."""
        self.volumes = b""
        """A digest of the pod's volumes: pods that share all of them have one."""

    def of(self, pod: Pod, own: Placed | None) -> VolumeVerdict:
        if not pod.spec.volumes:
            return NOTHING
        nodes = self._nodes
        key = id(pod), id(own), self._book.version, nodes.changes.version, nodes.arrivals
        if key != self._key:
            self._latest = self._filters.of(pod, own)
            self._key, self._about = key, (pod, own)
            self.volumes = digest_of((pod_volumes(pod), pod.metadata.uid if own is not None else ""))
        return self._latest

    def held(self, pod: Pod) -> PodRefusal | None:
        """Return what holds the pod whatever the node offers, or None."""
        held = self.of(pod, None).held
        return _refusal(held) if held is not None else None

    def reason(self, code: str, pod: Pod, row: int) -> str:
        """Return why the plugin refuses the node: a sentence with its name, the object, the figure."""
        own = self._about[1] if self._about is not None and self._about[0] is pod else None
        found = next((each for each in self.of(pod, own).refusals if _CODE_OF[each.plugin] == code), None)
        return f"{found.plugin}: {found.reason(row)}" if found is not None else ""


class VolumePlugin:
    """One of the four. A filter is kept for pods with equal volumes, such as the replicas that
    share a model; it refers to none of them.
    """

    def __init__(self, code: str, verdicts: VolumeVerdicts, shapes: PodShapes) -> None:
        self._code = code
        self._verdicts = verdicts
        self._shapes = shapes

    def filter_for(self, pod: Pod, own: Placed | None) -> PodFilter | PodRefusal | None:
        if not pod.spec.volumes:
            return None
        verdict = self._verdicts.of(pod, own)
        if verdict.held is not None and _CODE_OF[verdict.held.plugin] == self._code:
            return _refusal(verdict.held)
        for refusal in verdict.refusals:
            if _CODE_OF[refusal.plugin] == self._code:
                found = self._shapes.of(
                    pod, self._code, self._verdicts.volumes, lambda: VolumeFilter(self._code, self._verdicts)
                )
                found.update(refusal.refused)
                return found
        return None


class VolumeFilter(PodFilter):
    def __init__(self, code: str, verdicts: VolumeVerdicts) -> None:
        super().__init__(code)
        self._verdicts = verdicts

    def update(self, refused: Bools) -> None:
        if not np.array_equal(refused, self.refused):
            self.refused = refused
            self.version += 1

    def refresh(self) -> None:
        """Nothing to do: it was updated when it was asked for."""

    def sentence(self, pod: Pod, row: int) -> str:
        return self._verdicts.reason(self.code, pod, row)


_PLUGIN_OF: Final = dict(
    zip(CODES, ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"), strict=True)
)
_CODE_OF: Final = {plugin: code for code, plugin in _PLUGIN_OF.items()}


def _refusal(held: Held) -> PodRefusal:
    return PodRefusal(_CODE_OF[held.plugin], f"{held.plugin}: {held.why}")
