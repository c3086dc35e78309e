"""Enflame: whole GCUs, or slices of them (vGCU)."""

from hami_dra.vendors.enflame.containers import EnflameContainers
from hami_dra.vendors.enflame.legacy import EnflameLegacy
from hami_dra.vendors.enflame.options import CARD_SLICES
from hami_dra.vendors.enflame.publish import EnflamePublishing
from hami_dra.vendors.enflame.rules import Enflame
from hami_dra.vendors.plugin import HostPath, VendorPlugin, imported

PLUGIN = VendorPlugin(
    title="Enflame",
    parts="vGCU: slices by percentage",
    options=(CARD_SLICES,),
    host_paths=(HostPath(path="/usr/local/efsmi", purpose="efsmi"),),
    rules=Enflame(),
    publishing=EnflamePublishing(),
    containers=EnflameContainers(),
    legacy=EnflameLegacy(),
    backend=imported("hami_dra.vendors.enflame.discovery:backend"),
    sampler=imported("hami_dra.vendors.enflame.monitor:sampler", arguments=0),
)
