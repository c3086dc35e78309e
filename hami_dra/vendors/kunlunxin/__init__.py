"""Kunlunxin: whole XPUs, or halves and quarters of them (vXPU), in two wings."""

from hami_dra.vendors.kunlunxin.containers import KunlunxinContainers
from hami_dra.vendors.kunlunxin.legacy import KunlunxinLegacy
from hami_dra.vendors.kunlunxin.publish import KunlunxinPublishing
from hami_dra.vendors.kunlunxin.records import KunlunxinRecord
from hami_dra.vendors.kunlunxin.rules import Kunlunxin
from hami_dra.vendors.plugin import HostPath, VendorPlugin, imported

PLUGIN = VendorPlugin(
    title="Kunlunxin",
    parts="vXPU: halves and quarters",
    host_paths=(HostPath(path="/usr/local/xpu", purpose="xpu-smi"),),
    rules=Kunlunxin(),
    publishing=KunlunxinPublishing(),
    containers=KunlunxinContainers(),
    legacy=KunlunxinLegacy(),
    backend=imported("hami_dra.vendors.kunlunxin.discovery:backend"),
    sampler=imported("hami_dra.vendors.kunlunxin.monitor:sampler", arguments=0),
    record=KunlunxinRecord,
)
