"""MetaX: whole cards, or parts of them (sGPU), joined by MetaXLink zones."""

from pathlib import Path

from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.vendors.metax.containers import MetaxContainers
from hami_dra.vendors.metax.legacy import MetaxLegacy
from hami_dra.vendors.metax.publish import MetaxPublishing
from hami_dra.vendors.metax.records import MetaxRecord
from hami_dra.vendors.metax.rules import Metax
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.plugin import HostPath, VendorPlugin


def _backend(state_folder: Path | None) -> Backend:
    from hami_dra.vendors.metax import discovery

    return discovery.backend(state_folder)


def _sampler(_backend: Backend) -> CardSampler:
    from hami_dra.vendors.metax import monitor

    return monitor.sampler()


PLUGIN = VendorPlugin(
    title="MetaX",
    parts="sGPU: memory, cores, quality of service",
    options=(SLOTS,),
    host_paths=(HostPath(path="/opt/mxdriver", purpose="mx-smi"),),
    rules=Metax(),
    publishing=MetaxPublishing(),
    containers=MetaxContainers(),
    legacy=MetaxLegacy(),
    backend=_backend,
    sampler=_sampler,
    record=MetaxRecord,
)
