"""The sampler of each vendor, for the node driver."""

from collections.abc import Callable, Mapping
from typing import Final

from hami_dra.discovery import enflame as enflame_cards
from hami_dra.discovery import kunlunxin as kunlunxin_cards
from hami_dra.discovery import metax as metax_cards
from hami_dra.discovery import neuron as neuron_cards
from hami_dra.discovery.backend import Backend
from hami_dra.discovery.nvml import NvmlBackend
from hami_dra.monitor import enflame, kunlunxin, metax, neuron
from hami_dra.monitor.nvml import NvmlSampler
from hami_dra.monitor.readings import Sampler

_BY_TOOL: Final[Mapping[str, Callable[[], Sampler]]] = {
    metax_cards.VENDOR: metax.sampler,
    kunlunxin_cards.VENDOR: kunlunxin.sampler,
    neuron_cards.VENDOR: neuron.NeuronSampler,
    enflame_cards.VENDOR: enflame.sampler,
}


def sampler_of(backend: Backend) -> Sampler | None:
    """Return the sampler for the cards that this back end finds; None if there is none.

    Creating one touches no hardware.
    """
    if isinstance(backend, NvmlBackend):
        return NvmlSampler(backend)
    made = _BY_TOOL.get(backend.vendor)
    return made() if made else None
