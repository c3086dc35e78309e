"""What `npu-smi info -t info-vnpu` prints, as its source has it (`printf_vnpu_free_resoure_info`, `printf_each_vnpu_info`) and as a
910B4 with npu-smi 24.1 printed it."""

from collections.abc import Sequence
from typing import NamedTuple

LINE = f"+{'-' * 79}+"
ABOVE = f"""{LINE}
| NPU resource static info as follow:                                           |
| Format:Free/Total                   NA: Currently, query is not supported.    |
| AICORE    Memory    AICPU    VPC    VENC    VDEC    JPEGD    JPEGE    PNGD    |
|            GB                                                                 |
|{"=" * 79}|
| 0/20      0/32      1/7      1/9    0/0     0/2     0/24     0/4      NA/NA   |
{LINE}
"""
HEADER = "|  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name       |"
FREE, TAKEN = "000000000000", "ffffffffffff"


class Row(NamedTuple):
    number: int
    group: str = "0"
    container: str = FREE
    status: int = 0
    template: str = "vir10_3c_16g"


def listing(rows: Sequence[Row], failed: Sequence[int] = ()) -> str:
    """Print a table. `failed`: numbers of vNPUs that npu-smi cannot read: it prints the values of the one before, or zeros."""
    lines = [
        f"| Total number of vnpu: {len(rows):<2}                                                      |",
        LINE,
        HEADER,
    ]
    shown = Row(0, template="")
    for row in rows:
        shown = shown._replace(number=row.number) if row.number in failed else row
        _, group, container, status, template = shown
        lines += [
            LINE,
            f"|  {row.number:<4}     |  {group:<12}  |  {container:<12}  |  {status:<2}      |  {template:<15}     |",
        ]
    return ABOVE + "\n".join([*lines, LINE]) + "\n"
