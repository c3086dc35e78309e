"""The record of one Enflame card, as discovery finds it."""

from hami_dra.api.hardware import DrivenCard


class EnflameRecord(DrivenCard, frozen=True, kw_only=True):
    """An Enflame GCU."""

    part_number: str = ""
    virtualization: str = ""
    """`Disable`, `SRIOV`, as the tool prints it."""
