"""Readings of NVIDIA GPUs, from NVML, which the back end keeps open: one visit for all GPUs.

Values that a GPU or its driver does not know stay empty: the utilisation of a partitioned GPU, the
fan of one without, ...
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from hami_dra.api.hardware import Card
from hami_dra.discovery.reading import MAX_BYTES
from hami_dra.monitor.readings import MAX_COUNT, Reading, Sample, ToolReport, joined
from hami_dra.vendors.nvidia.nvml import NvmlBackend, NvmlFailed, optional
from hami_dra.vendors.nvidia.nvml.library import Handle, Library

T = TypeVar("T")

_MOST_PERCENT: Final = 100
_MOST_DEGREES: Final = 200
_MOST_MILLIWATTS: Final = 20_000_000


class NvmlSampler:
    """Implements `hami_dra.monitor.readings.Sampler`."""

    source = "nvml"

    def __init__(self, backend: NvmlBackend) -> None:
        self._backend = backend

    def sample(self, cards: Sequence[Card]) -> Sample[Reading]:
        return joined(cards, [self._backend.look(read)])

    def close(self) -> None:
        """Do nothing: the back end closes NVML."""


def read(library: Library, gpus: Mapping[str, Handle]) -> ToolReport:
    """Read the GPUs (by UUID). A GPU that is lost meanwhile is left out."""
    readings: list[Reading] = []
    problems: list[str] = []
    for uuid, gpu in gpus.items():
        try:
            readings.append(_reading(library, uuid, gpu, problems))
        except NvmlFailed as failed:
            problems.append(f"NVML, GPU {uuid}: {failed}")
    return ToolReport(tuple(readings), tuple(problems))


def _reading(library: Library, uuid: str, gpu: Handle, problems: list[str]) -> Reading:
    def known(ask: Callable[[Handle], T]) -> T | None:
        return optional(lambda: ask(gpu), None, lambda text: problems.append(f"NVML, GPU {uuid}: {text}"))

    def within(what: str, value: int | None, most: int) -> int | None:
        """Return None for NVML's marker of an unknown value: the largest unsigned number."""
        if value is not None and not 0 <= value <= most:
            problems.append(f"NVML, GPU {uuid}, {what}: expected 0 to {most}, got {value}")
            return None
        return value

    memory = known(library.memory_in_use)
    used, total = memory if memory is not None and memory[0] <= memory[1] <= MAX_BYTES else (None, None)
    busy = known(library.utilization)
    power = within("power in mW", known(library.power), _MOST_MILLIWATTS)
    return Reading(
        uuid=uuid,
        memory_total=total,
        memory_used=used,
        utilization=within("utilisation", busy[0] if busy else None, _MOST_PERCENT),
        memory_utilization=within("utilisation of memory", busy[1] if busy else None, _MOST_PERCENT),
        temperature=within("temperature", known(library.temperature), _MOST_DEGREES),
        memory_temperature=within("temperature of memory", known(library.memory_temperature), _MOST_DEGREES),
        power=None if power is None else power / 1000,
        fan=within("fan", known(library.fan), _MOST_PERCENT),
        ecc_corrected=within("errors", known(lambda each: library.ecc_errors(each, corrected=True)), MAX_COUNT),
        ecc_uncorrected=within("errors", known(lambda each: library.ecc_errors(each, corrected=False)), MAX_COUNT),
    )
