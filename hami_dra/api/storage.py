"""Storage objects with the fields that kube-scheduler's volume plugins read: PersistentVolumes,
their claims, and storage.k8s.io/v1.
"""

from typing import Final

import msgspec

from hami_dra.api import names
from hami_dra.api.core import NodeSelector, QuantityText
from hami_dra.api.meta import UNREADABLE, LabelSelector, Object, Struct
from hami_dra.api.podvolumes import AwsElasticBlockStore, AzureDisk, CinderSource, GcePersistentDisk, PortworxSource

_MOST_VOLUMES: Final = 2**31 - 1


class StorageAmount(Struct, frozen=True):
    """Amounts by resource: `storage` is the only one that is read."""

    storage: QuantityText | None = None


class ClaimReference(Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class VolumeNodeAffinity(Struct, frozen=True):
    required: NodeSelector | None = None


class CsiVolume(Struct, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(Struct, frozen=True):
    capacity: StorageAmount = StorageAmount()
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    claim_ref: ClaimReference | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiVolume | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderSource | None = None
    portworx_volume: PortworxSource | None = None


class VolumeStatus(Struct, frozen=True):
    phase: str = ""


class PersistentVolume(Object, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: VolumeStatus = VolumeStatus()

    @property
    def storage_class(self) -> str:
        """Return the name of its StorageClass; the annotation of old counts first, as upstream."""
        return self.metadata.annotations.get(names.BETA_STORAGE_CLASS, self.spec.storage_class_name)

    @property
    def required_nodes(self) -> NodeSelector | None:
        affinity = self.spec.node_affinity
        return affinity.required if affinity is not None else None


class VolumeResources(Struct, frozen=True):
    requests: StorageAmount = StorageAmount()


class PersistentVolumeClaimSpec(Struct, frozen=True):
    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    unreadable: str = msgspec.field(default="", name=UNREADABLE)
    """Why only a stub was kept (`api.oversized`): it has no selector."""


class PersistentVolumeClaim(Object, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: VolumeStatus = VolumeStatus()

    @property
    def storage_class(self) -> str:
        return self.metadata.annotations.get(names.BETA_STORAGE_CLASS, self.spec.storage_class_name or "")

    @property
    def is_fully_bound(self) -> bool:
        return bool(self.spec.volume_name) and names.BIND_COMPLETED in self.metadata.annotations

    @property
    def selected_node(self) -> str | None:
        """Return the node for which kube-scheduler asked for provisioning; None: it did not."""
        return self.metadata.annotations.get(names.SELECTED_NODE)

    @property
    def requested(self) -> QuantityText | None:
        return self.spec.resources.requests.storage


class TopologySelectorRequirement(Struct, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Struct, frozen=True):
    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(Object, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()

    @property
    def is_default(self) -> bool:
        """Return whether claims that name no class get this one."""
        annotations = self.metadata.annotations
        return "true" in (
            annotations.get(names.DEFAULT_STORAGE_CLASS),
            annotations.get(names.BETA_DEFAULT_STORAGE_CLASS),
        )

    @property
    def waits_for_consumer(self) -> bool:
        return self.volume_binding_mode == "WaitForFirstConsumer"


class VolumeNodeResources(Struct, frozen=True):
    count: int | None = None


class CSINodeDriver(Struct, frozen=True):
    name: str = ""
    allocatable: VolumeNodeResources | None = None

    @property
    def limit(self) -> int | None:
        """Return how many volumes of the driver the node takes; None: any number. The API server
        lets 0 to 2^31 - 1 through; a file may say anything.
        """
        count = self.allocatable.count if self.allocatable is not None else None
        return min(max(count, 0), _MOST_VOLUMES) if count is not None else None


class CSINodeSpec(Struct, frozen=True):
    listed: tuple[CSINodeDriver, ...] | None = msgspec.field(default=(), name="drivers")

    @property
    def drivers(self) -> tuple[CSINodeDriver, ...]:
        """Return none for null, which kubelet writes where no CSI driver is."""
        return self.listed or ()


class CSINode(Object, frozen=True):
    """Has the name of its Node."""

    spec: CSINodeSpec = CSINodeSpec()

    @property
    def migrated_plugins(self) -> str:
        """Return the in-tree plugins whose volumes CSI drivers serve here, separated by commas."""
        return self.metadata.annotations.get(names.MIGRATED_PLUGINS, "")


class CSIDriverSpec(Struct, frozen=True):
    storage_capacity: bool = False
    prevent_pod_scheduling_if_missing: bool = False


class CSIDriver(Object, frozen=True):
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object, frozen=True):
    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: QuantityText | None = None
    maximum_volume_size: QuantityText | None = None

    @property
    def limit(self) -> QuantityText | None:
        """Return the size of the largest volume that can be made now; None: none can."""
        return self.maximum_volume_size if self.maximum_volume_size is not None else self.capacity


class VolumeAttachmentSource(Struct, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Struct, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = msgspec.field(default=VolumeAttachmentSource())


class VolumeAttachment(Object, frozen=True):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
