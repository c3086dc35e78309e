"""kube-scheduler's volume plugins as filter plugins of the node filter. They share one verdict per
pod: which nodes each of them refuses, and why. Pure.

A pod that has volumes is judged for each decision; one without them costs nothing. A pod is held
where no node can have it whatever the node offers.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.incremental.digests import digest_of
from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.cluster.pods.pod_shapes import PodShapes
from controller.cluster.volumes.volume_binding import ClaimsToPlace
from controller.reasons import catalogue
from controller.reasons.catalogue import PLUGINS
from controller.rules.plugin import PodFilter, PodRefusal
from controller.rules.volumes import volume_zone
from controller.rules.volumes.pod_claims import claims_of, exclusive_claims, in_use, pod_volumes
from controller.rules.volumes.volume_book import VolumeBook
from hami_dra.api.arrays import Bools
from hami_dra.api.core import Pod

CODES: Final = (
    catalogue.NODE_VOLUME_RESTRICTIONS,
    catalogue.NODE_VOLUME_LIMITS,
    catalogue.NODE_VOLUME_BINDING,
    catalogue.NODE_VOLUME_ZONE,
)
_Refusal = tuple[Bools, Callable[[int], str]]
"""The nodes that one plugin refuses, shape (size,), and why it refuses a row: a sentence with the
object and the figure. Read it at once: it refers to what the next change updates.
"""


class VolumeVerdict(Struct, frozen=True):
    held: PodRefusal | None = None
    refusals: Mapping[str, _Refusal] = {}
    """By reason code."""


_NOTHING: Final = VolumeVerdict()


class VolumeVerdicts:
    """The latest verdict: the plugins ask about one pod one after the other."""

    def __init__(self, nodes: NodeColumns, book: VolumeBook) -> None:
        self._nodes = nodes
        self._book = book
        self._latest = _NOTHING
        self._key: object = None
        self._about: tuple[Pod, Placed | None] | None = None
        """What it is about; kept, so that no other object gets its `id`."""
        self.volumes = b""
        """A digest of the pod's volumes: pods that share all of them have one."""

    def of(self, pod: Pod, own: Placed | None) -> VolumeVerdict:
        """Return the verdict on a pod. `own`: where it counts already, which does not count against it."""
        if not pod.spec.volumes:
            return _NOTHING
        nodes = self._nodes
        key = id(pod), id(own), self._book.version, nodes.changes.version, nodes.arrivals
        if key != self._key:
            self._latest = self._judged(pod, own)
            self._key, self._about = key, (pod, own)
            self.volumes = digest_of((pod_volumes(pod), pod.metadata.uid if own is not None else ""))
        return self._latest

    def reason(self, code: str, pod: Pod, row: int) -> str:
        """Return why the plugin refuses the node: a sentence with its name, the object, the figure."""
        own = self._about[1] if self._about is not None and self._about[0] is pod else None
        refusal = self.of(pod, own).refusals.get(code)
        return f"{PLUGINS[code]}: {refusal[1](row)}" if refusal is not None else ""

    def _judged(self, pod: Pod, own: Placed | None) -> VolumeVerdict:
        book = self._book
        refusals: dict[str, _Refusal] = {}
        if (mask := book.disks.refused(pod)) is not None:
            refusals[catalogue.NODE_VOLUME_RESTRICTIONS] = mask, partial(book.disks.reason, pod)
        if not book.objects.are_claims_readable:
            return VolumeVerdict(refusals=refusals)
        claims = claims_of(pod, book.objects)
        if isinstance(claims, PodRefusal):
            return VolumeVerdict(claims)
        if (mask := book.limits.refused(pod, own)) is not None:
            refusals[catalogue.NODE_VOLUME_LIMITS] = mask, partial(book.limits.reason, pod, own=own)
        to_place = claims.to_place
        if to_place.bound or to_place.waiting:
            uid = pod.metadata.uid
            with book.without_reservation(uid):
                mask = book.binding.refused(to_place)
            refusals[catalogue.NODE_VOLUME_BINDING] = mask, partial(self._unbindable, uid, to_place)
        mask = volume_zone.refused(claims.in_zones, self._nodes, book.labels)
        if mask is not None:
            refusals[catalogue.NODE_VOLUME_ZONE] = mask, partial(volume_zone.reason, claims.in_zones, self._nodes)
        return VolumeVerdict(self._exclusive(pod), refusals)

    def _unbindable(self, uid: str, claims: ClaimsToPlace, row: int) -> str:
        with self._book.without_reservation(uid):
            return self._book.binding.reason(claims, row)

    def _exclusive(self, pod: Pod) -> PodRefusal | None:
        """Return what holds a pod whose ReadWriteOncePod claim is in use, or None."""
        for key in exclusive_claims(pod, self._book.objects):
            if user := self._book.user_of(key, but=pod.metadata.uid):
                return in_use(key, user)
        return None


class VolumePlugin:
    """One of the four. A filter is kept for pods with equal volumes, such as the replicas that
    share a model; it refers to none of them.
    """

    def __init__(self, code: str, verdicts: VolumeVerdicts, shapes: PodShapes) -> None:
        self.code = code
        self._verdicts = verdicts
        self._shapes = shapes

    def filter_for(self, pod: Pod, own: Placed | None) -> PodFilter | PodRefusal | None:
        if not pod.spec.volumes:
            return None
        verdict = self._verdicts.of(pod, own)
        if verdict.held is not None and verdict.held.code == self.code:
            return verdict.held
        refusal = verdict.refusals.get(self.code)
        if refusal is None:
            return None
        volume_filter = self._shapes.of(
            pod, self.code, self._verdicts.volumes, lambda: VolumeFilter(self.code, self._verdicts)
        )
        volume_filter.update(refusal[0])
        return volume_filter


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
