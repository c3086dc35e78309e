"""The record of one NVIDIA card, as discovery finds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hami_dra.api.hardware import DrivenCard, MigState


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord(DrivenCard):
    """An NVIDIA GPU. Empty = not known."""

    brand: str = ""
    architecture: str = ""
    compute_capability: str = ""
    """`9.0`."""
    mig: MigState | None = None
    """None: this GPU does not support MIG."""
    peer_access: Mapping[int, bool] = field(default_factory=dict)
    """Index of the peer → whether its memory can be read directly (P2P); absent = not known."""
