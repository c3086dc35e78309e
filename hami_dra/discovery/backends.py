"""The back end of each vendor, and what cuts its cards, for the node driver."""

from collections.abc import Callable, Mapping
from typing import Final

from hami_dra.discovery import enflame, kunlunxin, metax, neuron
from hami_dra.discovery.backend import Backend
from hami_dra.discovery.nvml import NvmlBackend, NvmlPartitioner
from hami_dra.vendors.containers import Partitioner

BACKENDS: Final[Mapping[str, Callable[[], Backend]]] = {
    NvmlBackend.vendor: NvmlBackend,
    metax.VENDOR: metax.backend,
    kunlunxin.VENDOR: kunlunxin.backend,
    neuron.VENDOR: neuron.backend,
    enflame.VENDOR: enflame.backend,
}
"""`Card.vendor` → what makes its back end, with everything at its place on a real machine. Making one touches no hardware."""
PARTITIONERS: Final[Mapping[str, Callable[[], Partitioner]]] = {NvmlBackend.vendor: NvmlPartitioner}
"""The same for vendors whose cards are cut into parts when somebody is given one."""
