"""Which PersistentVolumes are free, by class, and which are reserved for which claim: by the
cluster (`spec.claimRef`), or by a decision that kube-scheduler has not carried out yet. Pure.
"""

from typing import Final

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.pod_shapes import PodShapes
from controller.cluster.volumes.static_volumes import StaticVolumes, VolumeRequest, request_of
from hami_dra.api.storage import PersistentVolume, PersistentVolumeClaim
from hami_dra.kube.store import Index

_AVAILABLE: Final = "Available"


class FreeVolumes:
    def __init__(self, nodes: NodeColumns, labels: NodeLabels, shapes: PodShapes) -> None:
        self._nodes, self._labels, self._shapes = nodes, labels, shapes
        self._volumes: dict[str, PersistentVolume] = {}
        self._by_class: dict[str, StaticVolumes] = {}
        self._reserved: dict[str, str] = {}
        """Name of a volume → key of the claim for which a decision reserves it."""
        self._requests: dict[str, tuple[PersistentVolumeClaim, VolumeRequest]] = {}
        """By key of the claim: what it asks of a volume, read once."""
        self._of_claim = Index()
        """Key of a claim → names of the volumes that are reserved for it, in either way."""

    def changed(self, name: str, volume: PersistentVolume | None) -> None:
        """Update a volume. What the cluster says of it ends our own reservation."""
        self._withdraw(name)
        if volume is None:
            self._volumes.pop(name, None)
            self._reserved.pop(name, None)
            return
        self._volumes[name] = volume
        if volume.spec.claim_ref is not None or volume.status.phase != _AVAILABLE:
            self._reserved.pop(name, None)
        self._offer(name)

    def holder(self, name: str) -> str:
        """Return the key of the claim that has the volume, by the cluster or a decision, or an empty text."""
        return self._claim_of(name) if name in self._volumes else ""

    def reserve(self, name: str, claim_key: str) -> None:
        """Reserve a volume for a claim that kube-scheduler is expected to bind to it."""
        self._withdraw(name)
        self._reserved[name] = claim_key
        self._offer(name)

    def release(self, name: str, claim_key: str) -> None:
        """End our own reservation."""
        if self._reserved.get(name) == claim_key:
            self._withdraw(name)
            del self._reserved[name]
            self._offer(name)

    # -- reading -----------------------------------------------------------------------------------

    def request_of(self, claim: PersistentVolumeClaim) -> VolumeRequest:
        found = self._requests.get(claim.key)
        if found is None or found[0] is not claim:
            found = self._requests[claim.key] = claim, request_of(claim)
        return found[1]

    def claim_changed(self, key: str) -> None:
        self._requests.pop(key, None)

    def free(self, storage_class: str) -> StaticVolumes | None:
        """Return the free volumes of a class; None: it has none."""
        return self._by_class.get(storage_class)

    def reserved_for(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume that is reserved for the claim and suits it, or None."""
        for name in sorted(self._of_claim.keys(claim.key)):
            volume = self._volumes[name]
            reference = volume.spec.claim_ref
            if (
                (reference is None or reference.uid in {"", claim.metadata.uid})
                and volume.storage_class == claim.storage_class
                and self.request_of(claim).suits(volume)
            ):
                return volume
        return None

    # -- inside ------------------------------------------------------------------------------------

    def _claim_of(self, name: str) -> str:
        """Return the key of the claim that the volume is reserved for, or an empty text."""
        reference = self._volumes[name].spec.claim_ref
        return reference.key if reference is not None else self._reserved.get(name, "")

    def _offer(self, name: str) -> None:
        volume = self._volumes.get(name)
        if volume is None:
            return
        if key := self._claim_of(name):
            self._of_claim.add(key, name)
        elif volume.status.phase == _AVAILABLE:
            storage_class = volume.storage_class
            free = self._by_class.get(storage_class)
            if free is None:
                free = self._by_class[storage_class] = StaticVolumes(self._nodes, self._labels, self._shapes)
            free.add(volume)

    def _withdraw(self, name: str) -> None:
        volume = self._volumes.get(name)
        if volume is None:
            return
        if key := self._claim_of(name):
            self._of_claim.discard(key, name)
        elif volume.status.phase == _AVAILABLE:
            free = self._by_class[volume.storage_class]
            free.remove(volume)
            if not free:
                del self._by_class[volume.storage_class]
