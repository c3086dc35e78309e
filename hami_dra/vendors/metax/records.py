"""The record of one MetaX card, as discovery finds it."""

from hami_dra.api.hardware import DrivenCard


class MetaxRecord(DrivenCard, frozen=True, kw_only=True):
    """A MetaX GPU."""

    board: int | None = None
    """Number of the board; GPUs with the same number share it."""
    sgpu: bool | None = None
    """Whether sGPU mode (sharing by the driver) is on; None = the tool does not report it."""
