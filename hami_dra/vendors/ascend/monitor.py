"""Readings of Ascend NPUs, from the table of `npu-smi info`. Pure parsers.

Boards with a 310P do not report their power (`NA`). The memory in use is all that the card's
programs and its driver take.
"""

from typing import Final

from msgspec.structs import replace

from hami_dra.discovery.tool import Tool
from hami_dra.monitor.listings import ListingSampler
from hami_dra.monitor.readings import Reading, ToolReport, Words, amount, celsius, percent, watts
from hami_dra.vendors.ascend import discovery as ascend
from hami_dra.vendors.ascend.ecc import AscendSampler
from hami_dra.vendors.ascend.table import INFO, ChipRow, parse_table

TOOL: Final = replace(ascend.TOOL, timeout=10.0)


def sampler(tool: Tool = TOOL) -> AscendSampler:
    return AscendSampler(tool, ListingSampler(tool, ((("info",), parse_info),)))


def parse_info(text: str) -> ToolReport:
    """Parse `npu-smi info`. Raises Unreadable."""
    table = parse_table(text)
    problems = list(table.problems)
    return ToolReport(tuple(_reading(row, problems) for row in table.rows), tuple(problems))


def _reading(row: ChipRow, problems: list[str]) -> Reading:
    words = Words(f"{INFO}, NPU {row.npu}, chip {row.chip}", problems)
    total = words.read("memory", str(row.memory), lambda text: amount(text, "MiB"))
    used = words.read("memory in use", str(row.memory_used), lambda text: amount(text, "MiB"))
    return Reading(
        index=row.index,
        memory_total=total,
        memory_used=words.within(used, total),
        utilization=words.read("AICore(%)", row.utilization, lambda text: percent(text, "%")),
        temperature=words.read("Temp(C)", row.temperature, lambda text: celsius(text, "C")),
        power=words.read("Power(W)", row.power, lambda text: watts(text, "W")),
    )
