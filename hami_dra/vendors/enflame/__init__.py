"""Enflame: whole GCUs, or slices of them (vGCU)."""

from pathlib import Path

from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.vendors.enflame.containers import EnflameContainers
from hami_dra.vendors.enflame.legacy import EnflameLegacy
from hami_dra.vendors.enflame.options import CARD_SLICES
from hami_dra.vendors.enflame.publish import EnflamePublishing
from hami_dra.vendors.enflame.records import EnflameRecord
from hami_dra.vendors.enflame.rules import Enflame
from hami_dra.vendors.plugin import HostPath, VendorPlugin


def _backend(state_folder: Path | None) -> Backend:
    from hami_dra.vendors.enflame import discovery

    return discovery.backend(state_folder)


def _sampler(_backend: Backend) -> CardSampler:
    from hami_dra.vendors.enflame import monitor

    return monitor.sampler()


PLUGIN = VendorPlugin(
    title="Enflame",
    parts="vGCU: slices by percentage",
    options=(CARD_SLICES,),
    host_paths=(HostPath(path="/usr/local/efsmi", purpose="efsmi"),),
    rules=Enflame(),
    publishing=EnflamePublishing(),
    containers=EnflameContainers(),
    legacy=EnflameLegacy(),
    backend=_backend,
    sampler=_sampler,
    record=EnflameRecord,
)
