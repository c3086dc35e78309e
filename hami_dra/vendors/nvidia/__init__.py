"""NVIDIA: cards shared by memory, cores and slots through HAMi-core, taken whole, or partitioned by MIG."""

from typing import Any

from msgspec.structs import replace

from hami_dra.api.containers import Partitioner
from hami_dra.api.hardware import Card
from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.vendors.nvidia.containers import NvidiaContainers
from hami_dra.vendors.nvidia.legacy import NvidiaLegacy
from hami_dra.vendors.nvidia.options import OPTIONS
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from hami_dra.vendors.nvidia.records import FabricPlace, GpuRecord, MigState
from hami_dra.vendors.nvidia.rules import Nvidia
from hami_dra.vendors.nvidia.third_party import hami_devices, nvidia_devices
from hami_dra.vendors.plugin import HostPath, VendorPlugin, imported


def _sampler(backend: Backend) -> CardSampler | None:
    from hami_dra.vendors.nvidia.monitor import NvmlSampler
    from hami_dra.vendors.nvidia.nvml import NvmlBackend

    return NvmlSampler(backend) if isinstance(backend, NvmlBackend) else None


def _partitioner(backend: Backend) -> Partitioner:
    from hami_dra.vendors.nvidia.nvml import NvmlBackend, NvmlPartitioner

    return backend.partitioner() if isinstance(backend, NvmlBackend) else NvmlPartitioner()


def _with_partition_mode(card: Card, enabled: bool) -> Card | None:
    if not isinstance(card, GpuRecord) or not card.mig:
        return None
    return replace(card, mig=MigState(enabled=enabled, pending=enabled))


def _record(*, mig: bool | None = None, fabric: tuple[str, int] | None = None, **fields: Any) -> GpuRecord:
    """Return the record of a simulated card. `mig`: whether MIG mode is on; None: it has none.
    `fabric`: the uuid of its fabric and the number of its partition.
    """
    return GpuRecord(
        **fields,
        mig=None if mig is None else MigState(enabled=mig, pending=mig),
        fabric=None if fabric is None else FabricPlace(cluster_uuid=fabric[0], clique_id=fabric[1]),
    )


PLUGIN = VendorPlugin(
    title="NVIDIA",
    parts="memory, cores; MIG",
    options=OPTIONS,
    host_paths=(
        HostPath(
            path="/usr/local/vgpu",
            purpose="where HAMi-core is installed on the nodes, and with usageCache: host a folder for each container; elsewhere than "
            "below /usr/local: extraArgs: [--library-folder=/opt], and the path here",
            writable=True,
            create=True,
        ),
        HostPath(
            path="/etc/cdi", purpose="CDI devices of NVIDIA's toolkit, where an administrator has put them", create=True
        ),
    ),
    rules=Nvidia(),
    publishing=NvidiaPublishing(),
    containers=NvidiaContainers(),
    legacy=NvidiaLegacy(),
    backend=imported("hami_dra.vendors.nvidia.nvml:NvmlBackend.at"),
    sampler=_sampler,
    usage=imported("hami_dra.vendors.nvidia.usage_reader:RegionReader"),
    library_files=imported("hami_dra.vendors.nvidia.installation:library_files"),
    record=_record,
    partitioner=_partitioner,
    simulated_partitioner=imported("hami_dra.vendors.nvidia.simulated_partitions:SimulatedPartitioner"),
    with_partition_mode=_with_partition_mode,
    imitations={"gpu.nvidia.com": nvidia_devices, "hami-core-gpu.project-hami.io": hami_devices},
    use_driver_root=imported("hami_dra.vendors.nvidia.nvml.visits:use_driver_root"),
)
