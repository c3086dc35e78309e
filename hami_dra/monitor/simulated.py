"""Readings of simulated cards, derived from their allocations, so that dashboards work without hardware.

Pure. Programs use about four fifths of their allocation, in waves of some minutes; a card's
temperature and power follow its use. One card at one moment always reports the same values.
`SOURCE` marks the values as simulated everywhere.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from hami_dra.api import names
from hami_dra.api.hardware import Card
from hami_dra.monitor.readings import Reading, Sample

SOURCE: Final = names.SIMULATED
_WAVE: Final = 420.0
"""Seconds from one peak to the next."""
_RESERVED: Final = 1 << 28
"""Bytes that the driver of a card reserves."""
_IDLE_DEGREES, _DEGREES = 31.0, 38.0
"""At rest, and the increase at full load."""
_MEMORY_WARMER: Final = 6.0
_IDLE_WATTS, _WATTS = 65.0, 320.0


class Load(Struct, frozen=True):
    """Amounts allocated on a card."""

    memory: int = 0
    """Bytes."""
    cores: int = 0
    """Sum, in percent of the card's computing power."""
    tenants: int = 0


class SimulatedSampler:
    """Implements `hami_dra.monitor.readings.Sampler`. `loads`: by UUID, called for each sample; `now`: seconds."""

    source = SOURCE

    def __init__(self, loads: Callable[[], Mapping[str, Load]], now: Callable[[], float]) -> None:
        self._loads = loads
        self._now = now

    def sample(self, cards: Sequence[Card]) -> Sample[Reading]:
        loads, moment = self._loads(), self._now()
        return Sample(
            {card.uuid: reading(card.uuid, card.memory, loads.get(card.uuid, Load()), moment) for card in cards}
        )

    def close(self) -> None:
        """Do nothing: no resources are held."""


def reading(uuid: str, memory: int, load: Load, moment: float) -> Reading:
    """Return a reading of a card with `memory` bytes.

    Tenants without a share of cores compute in proportion to their share of the memory.
    """
    wave = 0.8 + 0.15 * math.sin(2 * math.pi * (moment / _WAVE + _phase(uuid)))
    given = min(load.memory, memory)
    cores = load.cores or (100 * given / memory if load.tenants and memory else 0)
    busy = min(cores, 100.0) * wave
    return Reading(
        uuid=uuid,
        memory_total=memory,
        memory_used=min(min(_RESERVED, memory) + int(given * wave), memory),
        utilization=round(busy, 1),
        memory_utilization=round(busy * 0.6, 1),
        temperature=round(_IDLE_DEGREES + _DEGREES * busy / 100, 1),
        memory_temperature=round(_IDLE_DEGREES + _MEMORY_WARMER + _DEGREES * busy / 100, 1),
        power=round(_IDLE_WATTS + _WATTS * busy / 100, 1),
        ecc_corrected=0,
        ecc_uncorrected=0,
    )


def _phase(uuid: str) -> float:
    """Return the card's phase, 0 to 1, so that cards do not move in step."""
    return hashlib.sha256(uuid.encode()).digest()[0] / 256
