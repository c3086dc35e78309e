"""The records of NVIDIA cards and their MIG partitions, as discovery finds them."""

from typing import Final

from msgspec import Struct

from hami_dra.api.hardware import DrivenCard, PartitionInstance, PartitionPlacement


class MigProfile(Struct, frozen=True, kw_only=True):
    """One partition size of a GPU, as NVML reports it (GPU instance profile)."""

    id: int
    """NVML's number of the profile on this GPU; its instances carry it."""
    name: str
    """`1g.10gb`, `1g.10gb+me`."""
    memory: int
    """Bytes."""
    slices: int
    """Compute slices, of the 7 (A30: 4) that a GPU has."""
    instances: int
    """Number of instances that fit on an empty GPU."""
    placements: tuple[PartitionPlacement, ...]
    """Possible positions of an instance, by start."""


class MigInstance(PartitionInstance, frozen=True, kw_only=True):
    """An existing partition: a GPU instance with at most one compute instance that spans it.

    `id` is the number of the GPU instance, `uuid` that of the MIG device (`MIG-...`), empty while
    it has no compute instance.
    """

    profile_id: int
    """`MigProfile.id`."""


class MigState(Struct, frozen=True, kw_only=True):
    """MIG state of a GPU that supports MIG."""

    enabled: bool
    pending: bool
    """The mode after the next reset of the GPU."""
    profiles: tuple[MigProfile, ...] = ()
    """By id. Known while MIG is enabled; some drivers report them earlier."""
    instances: tuple[MigInstance, ...] = ()
    """By id."""


class FabricPlace(Struct, frozen=True, kw_only=True):
    """Where a GPU is in an NVLink fabric that spans machines (NVL72).

    GPUs of one clique reach each other's memory. GPU feature discovery labels a node with
    `nvidia.com/gpu.clique: <cluster_uuid>.<clique_id>`.
    """

    cluster_uuid: str
    """The NVLink domain: `7b968a6d-c8aa-45e1-9e07-e1e51be99c31`; empty = in none now."""
    clique_id: int
    """A partition of the domain; unique in it."""


NO_FABRIC: Final = FabricPlace(cluster_uuid="", clique_id=0)
"""The GPU is in no fabric, or not yet: unlike None this replaces what was known before."""


class GpuRecord(DrivenCard, frozen=True, kw_only=True):
    """An NVIDIA GPU. Empty = not known."""

    brand: str = ""
    architecture: str = ""
    compute_capability: str = ""
    """`9.0`."""
    mig: MigState | None = None
    """None: this GPU does not support MIG."""
    fabric: FabricPlace | None = None
    """None: not known."""
