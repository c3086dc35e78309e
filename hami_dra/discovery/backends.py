"""The back end of each vendor, for the node driver."""

from collections.abc import Callable, Mapping
from typing import Final

from hami_dra.discovery import enflame, kunlunxin, metax, neuron
from hami_dra.discovery.backend import Backend
from hami_dra.discovery.nvml import NvmlBackend

BACKENDS: Final[Mapping[str, Callable[[], Backend]]] = {
    NvmlBackend.vendor: NvmlBackend,
    metax.VENDOR: metax.backend,
    kunlunxin.VENDOR: kunlunxin.backend,
    neuron.VENDOR: neuron.backend,
    enflame.VENDOR: enflame.backend,
}
"""`Card.vendor` → what makes its back end, with everything at its place on a real machine. Making one touches no hardware."""
