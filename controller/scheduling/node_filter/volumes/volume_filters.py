"""Which nodes kube-scheduler's volume plugins refuse for a pod, and why. Pure.

Called for each decision on a pod that has volumes; one without them costs nothing. A pod is held
where no node can have it whatever the node offers (`Held`); then every node is refused.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import Struct

from controller.scheduling.node_filter.nodes import NodeColumns, Placed
from controller.scheduling.node_filter.volumes import volume_zone
from controller.scheduling.node_filter.volumes.pod_claims import (
    NODE_VOLUME_LIMITS,
    VOLUME_BINDING,
    VOLUME_RESTRICTIONS,
    VOLUME_ZONE,
    Held,
    claims_of,
    exclusive_claims,
    in_use,
)
from controller.scheduling.node_filter.volumes.volume_binding import ClaimsToPlace
from controller.scheduling.node_filter.volumes.volume_book import VolumeBook
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod


class VolumeRefusal(Struct, frozen=True):
    """The nodes that one plugin refuses."""

    plugin: str
    refused: Bools
    """Shape (size,)."""
    reason: Callable[[int], str]
    """Why a row is refused: a sentence with the object and the figure. Read it at once: it refers
    to what the next change updates.
    """


class VolumeVerdict(Struct, frozen=True):
    held: Held | None = None
    refusals: tuple[VolumeRefusal, ...] = ()
    """In kube-scheduler's order of plugins."""


NOTHING = VolumeVerdict()


class VolumeFilters:
    def __init__(self, nodes: NodeColumns, book: VolumeBook) -> None:
        self._nodes = nodes
        self._book = book

    def of(self, pod: Pod, own: Placed | None = None) -> VolumeVerdict:
        """Return the verdict on a pod. `own`: where it counts already, which does not count against it."""
        if not pod.spec.volumes:
            return NOTHING
        refusals = []
        if (mask := self._book.disks.refused(pod)) is not None:
            refusals.append(VolumeRefusal(VOLUME_RESTRICTIONS, mask, partial(self._book.disks.reason, pod)))
        if not self._book.objects.are_claims_readable:
            return VolumeVerdict(refusals=tuple(refusals))
        claims = claims_of(pod, self._book.objects)
        if isinstance(claims, Held):
            return VolumeVerdict(claims, (self._everywhere(claims),))
        held = self._exclusive(pod)
        if held is not None:
            refusals.append(self._everywhere(held))
        if (mask := self._book.limits.refused(pod, own)) is not None:
            reason = partial(self._book.limits.reason, pod, own=own)
            refusals.append(VolumeRefusal(NODE_VOLUME_LIMITS, mask, reason))
        to_place = claims.to_place
        if to_place.bound or to_place.waiting:
            uid = pod.metadata.uid
            with self._book.without_reservation(uid):
                mask = self._book.binding.refused(to_place)
            refusals.append(VolumeRefusal(VOLUME_BINDING, mask, partial(self._unbindable, uid, to_place)))
        mask = volume_zone.refused(claims.in_zones, self._nodes, self._book.labels)
        if mask is not None:
            reason_in_zone = partial(volume_zone.reason, claims.in_zones, self._nodes)
            refusals.append(VolumeRefusal(VOLUME_ZONE, mask, reason_in_zone))
        return VolumeVerdict(held, tuple(refusals))

    def _unbindable(self, uid: str, claims: ClaimsToPlace, row: int) -> str:
        with self._book.without_reservation(uid):
            return self._book.binding.reason(claims, row)

    def _exclusive(self, pod: Pod) -> Held | None:
        """Return what holds a pod whose ReadWriteOncePod claim is in use, or None."""
        for key in exclusive_claims(pod, self._book.objects):
            if user := self._book.user_of(key, but=pod.metadata.uid):
                return in_use(key, user)
        return None

    def _everywhere(self, held: Held) -> VolumeRefusal:
        return VolumeRefusal(held.plugin, np.ones(self._nodes.size, dtype=np.bool_), lambda _row: held.why)
