"""The record of one Kunlunxin card, as discovery finds it."""

from dataclasses import dataclass

from hami_dra.api.hardware import DrivenCard


@dataclass(frozen=True, slots=True, kw_only=True)
class KunlunxinRecord(DrivenCard):
    """A Kunlunxin XPU."""

    architecture: str = ""
    oam_id: int | None = None
    """Its OAM socket; None for PCIe cards."""
