"""Volumes of a pod: the fields that kube-scheduler's Filter and Score plugins read, and local ones.

Most volumes of a pod (ConfigMaps, Secrets, tokens, empty directories) decide nothing about its
node: `is_read` tells them apart, and `hami_dra.api.sharing` drops them when a pod is read. Of those
whose data stays on the node it keeps a name.
"""

from operator import attrgetter
from typing import Final

import msgspec

from hami_dra.api.meta import Struct


class PersistentVolumeClaimSource(Struct, frozen=True):
    claim_name: str = ""


class EphemeralSource(Struct, frozen=True):
    """A generic ephemeral volume: its PersistentVolumeClaim is named `<pod>-<volume>`."""


class GcePersistentDisk(Struct, frozen=True):
    pd_name: str = ""
    read_only: bool = False


class AwsElasticBlockStore(Struct, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class IscsiSource(Struct, frozen=True):
    iqn: str = ""
    read_only: bool = False


class RbdSource(Struct, frozen=True):
    monitors: tuple[str, ...] = ()
    pool: str = ""
    image: str = ""
    read_only: bool = False


class AzureDisk(Struct, frozen=True):
    disk_uri: str = msgspec.field(default="", name="diskURI")
    kind: str | None = None


class CinderSource(Struct, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class PortworxSource(Struct, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class ImageVolume(Struct, frozen=True):
    reference: str = ""


class HostPath(Struct, frozen=True):
    """A directory of the node."""


class EmptyDir(Struct, frozen=True):
    medium: str = ""


class Volume(Struct, frozen=True):
    name: str = ""
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralSource | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    iscsi: IscsiSource | None = None
    rbd: RbdSource | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderSource | None = None
    portworx_volume: PortworxSource | None = None
    image: ImageVolume | None = None
    """Decides nothing about nodes, but a node that has the image is preferred."""

    @property
    def is_read(self) -> bool:
        """Return whether some plugin of kube-scheduler reads the volume."""
        return any(_what_is_read(self))

    @property
    def is_local(self) -> bool:
        """Return whether its data stays on the node: it is one for which Cluster Autoscaler keeps a node."""
        return self.host_path is not None or (self.empty_dir is not None and self.empty_dir.medium != "Memory")


SOURCES: Final = tuple(
    field for field in Volume.__struct_fields__ if field not in {"name", "image", "host_path", "empty_dir"}
)
"""The kinds of volume that filters read; a Volume has at most one kind."""
_what_is_read: Final = attrgetter("image", *SOURCES)
