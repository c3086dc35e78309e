"""Huawei Ascend: whole NPUs, or vNPUs cut from them by a template, in rings of HCCS."""

from hami_dra.api.containers import RuntimePartitions
from hami_dra.api.options import VendorOption, VendorSettings, switch
from hami_dra.vendors.ascend.containers import AscendContainers
from hami_dra.vendors.ascend.legacy import AscendLegacy
from hami_dra.vendors.ascend.publish import AscendPublishing
from hami_dra.vendors.ascend.records import AscendRecord
from hami_dra.vendors.ascend.rules import Ascend
from hami_dra.vendors.plugin import HostPath, VendorPlugin, imported

REMOVE_IDLE_VNPUS = VendorOption(
    name="remove-idle-vnpus",
    default=True,
    read=switch,
    help="Whether vNPUs that a container runtime left behind are removed. Off: where something else makes vNPUs on the same cards.",
)


def _vnpus(settings: VendorSettings) -> RuntimePartitions | None:
    from hami_dra.vendors.ascend import vnpus

    return vnpus.AscendVnpus() if settings[REMOVE_IDLE_VNPUS] else None


PLUGIN = VendorPlugin(
    title="Huawei Ascend",
    parts="vNPU: templates",
    options=(REMOVE_IDLE_VNPUS,),
    host_paths=(
        HostPath(path="/usr/local/Ascend/driver", purpose="libraries of npu-smi"),
        HostPath(path="/usr/local/sbin", purpose="npu-smi"),
        HostPath(
            path="/etc/vnpu.cfg",
            purpose="the vNPUs that exist: read and written when one is removed",
            writable=True,
            create=True,
            is_file=True,
        ),
        HostPath(path="/run/vnpu_cfg_lock", purpose="its lock", writable=True, create=True),
    ),
    rules=Ascend(),
    publishing=AscendPublishing(),
    containers=AscendContainers(),
    legacy=AscendLegacy(),
    backend=imported("hami_dra.vendors.ascend.discovery:backend"),
    sampler=imported("hami_dra.vendors.ascend.monitor:sampler", arguments=0),
    runtime_partitions=_vnpus,
    record=AscendRecord,
)
