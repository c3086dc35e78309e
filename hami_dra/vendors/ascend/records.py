"""The record of one Ascend NPU, as discovery finds it."""

from hami_dra.api.hardware import DrivenCard


class AscendRecord(DrivenCard, frozen=True, kw_only=True):
    """One chip. `minor` is the number of its device node, which the driver calls its physical id."""

    npu_id: int | None = None
    """The number that npu-smi has for the board; boards with two chips have one for both."""
    chip_id: int | None = None
    """Number of the chip on its board."""
    matrix_known: bool | None = None
    """Whether npu-smi reported how the chips are joined; None: it was not asked (simulated cards)."""
