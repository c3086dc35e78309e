"""The back end of each vendor, and what cuts its cards, for the node driver."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hami_dra.discovery import enflame, kunlunxin, metax, neuron
from hami_dra.discovery.backend import Backend
from hami_dra.discovery.nvml import NvmlBackend, NvmlPartitioner
from hami_dra.vendors.containers import Partitioner


def _nvml_partitioner(backend: Backend) -> Partitioner:
    return backend.partitioner() if isinstance(backend, NvmlBackend) else NvmlPartitioner()


BACKENDS: Final[Mapping[str, Callable[[Path | None], Backend]]] = {
    NvmlBackend.vendor: NvmlBackend.at,
    metax.VENDOR: metax.backend,
    kunlunxin.VENDOR: kunlunxin.backend,
    neuron.VENDOR: neuron.backend,
    enflame.VENDOR: enflame.backend,
}
"""`Card.vendor` → what makes its back end, with everything at its place on a real machine. Making one touches no hardware. In: the folder
for what must outlive the program; None: nothing does.
"""
PARTITIONERS: Final[Mapping[str, Callable[[Backend], Partitioner]]] = {NvmlBackend.vendor: _nvml_partitioner}
"""The same for vendors whose cards are cut into parts when somebody is given one. In: the back end that it works beside."""
