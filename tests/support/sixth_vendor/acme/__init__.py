"""Acme: cards shared by memory."""

from pathlib import Path

from acme.containers import AcmeContainers
from acme.legacy import AcmeLegacy
from acme.options import RESERVED
from acme.publish import AcmePublishing
from acme.rules import Acme
from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.vendors.options import SLOTS
from hami_dra.vendors.plugin import HostPath, VendorPlugin


def _backend(state_folder: Path | None) -> Backend:
    from acme import discovery

    return discovery.backend(state_folder)


def _sampler(_backend: Backend) -> CardSampler | None:
    return None


PLUGIN = VendorPlugin(
    title="Acme",
    parts="memory",
    options=(SLOTS, RESERVED),
    host_paths=(HostPath(path="/opt/acme", purpose="acme-smi"),),
    rules=Acme(),
    publishing=AcmePublishing(),
    containers=AcmeContainers(),
    legacy=AcmeLegacy(),
    backend=_backend,
    sampler=_sampler,
)
