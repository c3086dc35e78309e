"""The record of one Kunlunxin card, as discovery finds it."""

from hami_dra.api.hardware import DrivenCard


class KunlunxinRecord(DrivenCard, frozen=True, kw_only=True):
    """A Kunlunxin XPU."""

    architecture: str = ""
    oam_id: int | None = None
    """Its OAM socket; None for PCIe cards."""
