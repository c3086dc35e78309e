"""MetaX: whole cards, or parts of them (sGPU), joined by MetaXLink zones."""

from hami_dra.vendors.metax.containers import MetaxContainers
from hami_dra.vendors.metax.legacy import MetaxLegacy
from hami_dra.vendors.metax.publish import MetaxPublishing
from hami_dra.vendors.metax.rules import Metax
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.plugin import HostPath, VendorPlugin, imported

PLUGIN = VendorPlugin(
    title="MetaX",
    parts="sGPU: memory, cores, quality of service",
    options=(SLOTS,),
    host_paths=(HostPath(path="/opt/mxdriver", purpose="mx-smi"),),
    rules=Metax(),
    publishing=MetaxPublishing(),
    containers=MetaxContainers(),
    legacy=MetaxLegacy(),
    backend=imported("hami_dra.vendors.metax.discovery:backend"),
    sampler=imported("hami_dra.vendors.metax.monitor:sampler", arguments=0),
)
