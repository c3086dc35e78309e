"""The vNPUs that exist on a chip, and the removal of one.

Called by the node driver through `VendorPlugin.runtime_partitions`. Ascend Docker Runtime creates a
vNPU before a container is created and removes it in a hook after the container's end; where that hook
does not run, the vNPU stays. The parser accepts exactly what `npu-smi info -t info-vnpu` prints
(`printf_each_vnpu_info` in its source) and nothing else, because what is idle here may be removed:

| Total number of vnpu: 2                                                       |
+-------------------------------------------------------------------------------+
|  Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name       |
+-------------------------------------------------------------------------------+
|  100      |  0             |  ffffffffffff  |  1       |  vir10_3c_16g        |
+-------------------------------------------------------------------------------+
|  101      |  1             |  000000000000  |  0       |  vir10_3c_16g        |
+-------------------------------------------------------------------------------+

`Status` is DCMI's `is_container_used`: whether a process of the container has opened the vNPU. It is 0
too while a container runs that has not, so an idle vNPU is not yet one that nobody has.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hami_dra.api.containers import RuntimePartition
from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import Unreadable, shown
from hami_dra.discovery.reading import cells_of
from hami_dra.discovery.tool import Tool
from hami_dra.vendors.ascend.discovery import TOOL
from hami_dra.vendors.ascend.models import series_of
from hami_dra.vendors.ascend.records import AscendRecord

_LISTING: Final = "npu-smi info -t info-vnpu"
_COLUMNS: Final = ["Vnpu ID", "Vgroup ID", "Container ID", "Status", "Template Name"]
_TOTAL: Final = re.compile(r"\|\s*Total number of vnpu:\s*([0-9]{1,4})\s*\|")
_BORDER: Final = re.compile(r"\+-+\+")
_ROW: Final = (r"[0-9]{1,5}", r"[0-9]{1,12}|NA", r"[0-9a-f]{12,16}|NA", r"[0-9]{1,2}|NA", r"vir[0-9a-z_]{1,28}")
_MOST_ID: Final = 0xFFFE
"""DCMI takes 65535 for all vNPUs of the chip."""
REMOVER: Final = Tool(sys.executable, libraries=TOOL.libraries)


class AscendVnpus:
    """Implements `hami_dra.api.containers.RuntimePartitions`."""

    def __init__(self, tool: Tool = TOOL, remover: Tool = REMOVER) -> None:
        self._tool = tool
        self._remover = remover

    def existing(self, card: Card) -> Sequence[RuntimePartition]:
        chip, series = _chip(card), series_of(card)
        if chip is None or series is None:
            return ()
        ours = {template.name for template in series.templates}
        listed = parse_vnpus(self._tool.run("info", "-t", "info-vnpu", "-i", str(chip[0]), "-c", str(chip[1])))
        return [vnpu for vnpu in listed if vnpu.profile in ours]

    def destroy(self, card: Card, number: int) -> None:
        chip = _chip(card)
        if chip is None or not 0 <= number <= _MOST_ID:
            raise Unreadable(f"vNPU {number} of NPU {card.index} has no place on a chip")
        script = Path(__file__).with_name("dcmi.py")
        self._remover.run("-I", str(script), str(chip[0]), str(chip[1]), str(number))


def _chip(card: Card) -> tuple[int, int] | None:
    """Return the numbers of the board and the chip in npu-smi; None where they are not known."""
    if not isinstance(card, AscendRecord) or card.npu_id is None or card.chip_id is None:
        return None
    return card.npu_id, card.chip_id


def parse_vnpus(text: str) -> list[RuntimePartition]:
    """Parse the listing of one chip. Raises Unreadable unless every line after the total is as expected.

    For a vNPU that it cannot read, npu-smi prints the values of the one before, or zeros without a
    template. A row that repeats the one before is therefore left out.
    """
    lines = iter([line.strip() for line in text.splitlines() if line.strip()])
    total = next((int(found[1]) for line in lines if (found := _TOTAL.fullmatch(line))), None)
    table = list(lines)
    if total is None or len(table) < 1 or not (_is_border(table[0]) and _is_border(table[-1])):
        raise Unreadable(f"{_LISTING}: expected the number of vNPUs and a table of them, got {shown(text)}")
    rows = [cells_of(line) for line in table if not _is_border(line)]
    if (rows or total) and rows[:1] != [_COLUMNS]:
        raise Unreadable(f"{_LISTING}: expected the columns {', '.join(_COLUMNS)}, got {shown(' '.join(table))}")
    vnpus = [_vnpu(row) for row in rows[1:]]
    if not len({vnpu.number for vnpu in vnpus}) == len(vnpus) == total:
        raise Unreadable(f"{_LISTING}: expected {total} different vNPUs, got {', '.join(row[0] for row in rows[1:])}")
    return [vnpu for vnpu, row, before in zip(vnpus, rows[1:], rows, strict=False) if row[1:] != before[1:]]


def _vnpu(row: Sequence[str]) -> RuntimePartition:
    if len(row) != len(_ROW) or not all(re.fullmatch(form, cell) for form, cell in zip(_ROW, row, strict=True)):
        raise Unreadable(f"{_LISTING}: expected a vNPU with {', '.join(_COLUMNS)}, got {shown(' | '.join(row))}")
    number, _, container, status, template = row
    if int(number) > _MOST_ID:
        raise Unreadable(f"{_LISTING}: expected the number of a vNPU of at most {_MOST_ID}, got {number}")
    return RuntimePartition(number=int(number), profile=template, idle=status == "0" and not container.strip("0"))


def _is_border(line: str) -> bool:
    return _BORDER.fullmatch(line) is not None
