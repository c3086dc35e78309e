"""Kunlunxin: whole XPUs, or halves and quarters of them (vXPU), in two wings."""

from pathlib import Path

from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.vendors.kunlunxin.containers import KunlunxinContainers
from hami_dra.vendors.kunlunxin.legacy import KunlunxinLegacy
from hami_dra.vendors.kunlunxin.publish import KunlunxinPublishing
from hami_dra.vendors.kunlunxin.records import KunlunxinRecord
from hami_dra.vendors.kunlunxin.rules import Kunlunxin
from hami_dra.vendors.plugin import HostPath, VendorPlugin


def _backend(state_folder: Path | None) -> Backend:
    from hami_dra.vendors.kunlunxin import discovery

    return discovery.backend(state_folder)


def _sampler(_backend: Backend) -> CardSampler:
    from hami_dra.vendors.kunlunxin import monitor

    return monitor.sampler()


PLUGIN = VendorPlugin(
    title="Kunlunxin",
    parts="vXPU: halves and quarters",
    host_paths=(HostPath(path="/usr/local/xpu", purpose="xpu-smi"),),
    rules=Kunlunxin(),
    publishing=KunlunxinPublishing(),
    containers=KunlunxinContainers(),
    legacy=KunlunxinLegacy(),
    backend=_backend,
    sampler=_sampler,
    record=KunlunxinRecord,
)
