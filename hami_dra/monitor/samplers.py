"""Who reads the cards of each vendor, for the node driver."""

from collections.abc import Callable, Mapping
from typing import Final

from hami_dra.discovery import enflame, kunlunxin, metax, neuron
from hami_dra.discovery.backend import Backend
from hami_dra.discovery.nvml import NvmlBackend
from hami_dra.monitor.enflame import EnflameSampler
from hami_dra.monitor.kunlunxin import KunlunxinSampler
from hami_dra.monitor.metax import MetaxSampler
from hami_dra.monitor.neuron import NeuronSampler
from hami_dra.monitor.nvml import NvmlSampler
from hami_dra.monitor.readings import Sampler

_BY_TOOL: Final[Mapping[str, Callable[[], Sampler]]] = {
    metax.VENDOR: MetaxSampler,
    kunlunxin.VENDOR: KunlunxinSampler,
    neuron.VENDOR: NeuronSampler,
    enflame.VENDOR: EnflameSampler,
}


def sampler_of(backend: Backend) -> Sampler | None:
    """For the cards that this back end finds; None where nobody can tell. Making one touches no hardware."""
    if isinstance(backend, NvmlBackend):
        return NvmlSampler(backend)
    made = _BY_TOOL.get(backend.vendor)
    return made() if made else None
