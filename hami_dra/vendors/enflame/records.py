"""The record of one Enflame card, as discovery finds it."""

from dataclasses import dataclass

from hami_dra.api.hardware import DrivenCard


@dataclass(frozen=True, slots=True, kw_only=True)
class EnflameRecord(DrivenCard):
    """An Enflame GCU."""

    part_number: str = ""
    virtualization: str = ""
    """`Disable`, `SRIOV`, as the tool prints it."""
