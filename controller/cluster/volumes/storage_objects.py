"""The storage objects of a cluster, by name, with what refers to what. Pure.

Fed by the informers and by `simulate` with (old, new) pairs, which may be repeated: the stored
object decides.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import VolumeClaimRef
from hami_dra.api.storage import (
    CSIDriver,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from hami_dra.kube.store import Index


class StorageObjects:
    """`claims`, `attachments` by key; the others by name. `unreadable`: kinds that hami-dra may not
    read, or that the cluster does not serve: nothing is concluded from the absence of such objects.
    """

    def __init__(self) -> None:
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.csi_nodes: dict[str, CSINode] = {}
        self.drivers: dict[str, CSIDriver] = {}
        self.attachments: dict[str, VolumeAttachment] = {}
        self.unreadable: set[str] = set()
        self._claims_of_volume = Index()
        self._attachments_of_volume = Index()
        self._attachments_on = Index()

    @property
    def are_claims_readable(self) -> bool:
        """Return whether claims can be followed to their volumes."""
        return self.unreadable.isdisjoint(_CHAIN)

    def can_read(self, kind: kinds.Kind[Any]) -> bool:
        return kind.name not in self.unreadable

    # -- reading -----------------------------------------------------------------------------------

    def claim_of(self, ref: VolumeClaimRef, pod: Pod) -> PersistentVolumeClaim | None:
        """Return the claim of a pod's volume; None if it does not exist, or is another pod's."""
        claim = self.claims.get(ref.key)
        return claim if claim is not None and (not ref.is_ephemeral or is_for_pod(claim, pod)) else None

    def class_of(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        return self.classes.get(claim.storage_class)

    def claims_of_volume(self, volume: str) -> Collection[str]:
        """Return the keys of the claims whose `spec.volumeName` is the volume."""
        return self._claims_of_volume.keys(volume)

    def nodes_of_volume(self, volume: str) -> set[str]:
        """Return the nodes that the volume is attached to, by VolumeAttachment."""
        return {self.attachments[key].spec.node_name for key in self._attachments_of_volume.keys(volume)}

    def nodes_with_attachments(self) -> set[str]:
        return {each.spec.node_name for each in self.attachments.values()}

    def attached_to(self, node: str) -> Iterable[VolumeAttachment]:
        return [self.attachments[key] for key in self._attachments_on.keys(node)]

    # -- writing -----------------------------------------------------------------------------------

    def put_claim(self, key: str, claim: PersistentVolumeClaim | None) -> None:
        before = self.claims.pop(key, None)
        if before is not None:
            self._claims_of_volume.discard(before.spec.volume_name, key)
        if claim is not None:
            self.claims[key] = claim
            self._claims_of_volume.add(claim.spec.volume_name, key)

    def put_attachment(self, key: str, attachment: VolumeAttachment | None) -> None:
        before = self.attachments.pop(key, None)
        if before is not None:
            self._attachments_of_volume.discard(before.spec.source.persistent_volume_name, key)
            self._attachments_on.discard(before.spec.node_name, key)
        if attachment is not None:
            self.attachments[key] = attachment
            self._attachments_of_volume.add(attachment.spec.source.persistent_volume_name, key)
            self._attachments_on.add(attachment.spec.node_name, key)


_CHAIN: Final = frozenset({kinds.PERSISTENT_VOLUME_CLAIM.name, kinds.PERSISTENT_VOLUME.name, kinds.STORAGE_CLASS.name})


def is_for_pod(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    """Return whether the claim of an ephemeral volume was made for this pod, by uid."""
    return any(owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)
