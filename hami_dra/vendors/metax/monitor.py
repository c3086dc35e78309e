"""Readings of MetaX GPUs, from `mx-smi dmon` and, for memory errors, `mx-smi --count-ecc`. Pure
parsers.

`dmon` runs for one sample (`-c 1`), so that it ends on its own. It reports memory in use in whole
percents of a card only.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from hami_dra.discovery.errors import Unexpected, Unreadable, at_line
from hami_dra.discovery.indented import entries
from hami_dra.discovery.reading import MAX_INDEX, bus_id, said, whole
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.listings import Columns, ListingSampler, row_reading
from hami_dra.monitor.readings import Reading, ToolReport, Words, count, row_of
from hami_dra.vendors.metax import discovery as metax

TOOL: Final = replace(metax.TOOL, timeout=10.0)
_DMON: Final = "mx-smi dmon"
_ECC: Final = "mx-smi --count-ecc"
_SHOW: Final = (
    "--show-temperature",
    "--show-board-power",
    "--show-usage",
    "--show-memory",
    "--total-memory",
    "--show-bdf",
)
_LOOK: Final = ("dmon", *_SHOW, "--format", "csv", "-c", "1")
_HOTTEST: Final = ("hottemp", "coretemp", "soctemp")
"""Columns with chip temperatures, in order of precedence."""
_GPU: Final = re.compile(r"GPU#\s*(\d+)\s+\S+\s+(\S+)")


def sampler(tool: Tool = TOOL) -> ListingSampler:
    return ListingSampler(tool, ((_LOOK, parse_dmon), (("--count-ecc",), parse_ecc)))


def parse_dmon(text: str) -> ToolReport:
    """Parse CSV: names, units, then a row for each die. Raises Unreadable.

    Versions of the tool differ in their columns.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if "," in line]
    table = [[cell.strip() for cell in row] for row in csv.reader((line for _, line in lines), quoting=csv.QUOTE_NONE)]
    if len(table) < 2 or not {"dev", "bdfid"} <= set(table[0]):
        raise Unreadable(f"{_DMON}: expected the columns dev and bdfid, and below them their units")
    names, units = table[0], dict(zip(table[0], table[1], strict=False))
    if units["dev"] != "idx":
        raise Unreadable(f"{_DMON}: expected the unit idx below dev: nothing tells what the numbers mean")
    readings: list[Reading] = []
    problems: list[str] = []
    for (number, line), cells in zip(lines[2:], table[2:], strict=True):
        try:
            row, words = row_of(names, cells, "cells", ", "), Words(f"{_DMON}, line {number}", problems)
            hottest = next((column for column in _HOTTEST if said(row.get(column))), _HOTTEST[0])
            columns = Columns("total", "vram", "gpu", hottest, "power")
            gpu = whole(row["dev"], at_most=MAX_INDEX, what="a number of a GPU")
            readings.append(row_reading(columns, row, units, words, index=gpu, bus_id=bus_id(row["bdfid"])))
        except Unexpected as error:
            problems.append(at_line(_DMON, number, line, error))
    if not readings:
        raise Unreadable("; ".join(problems) or f"{_DMON}: expected a row for each GPU, got none")
    return ToolReport(tuple(readings), tuple(problems))


def parse_ecc(text: str) -> ToolReport:
    """Parse the counts below `ECC Errors` of each GPU, summed over the kinds of memory.

    Raises Unreadable.
    """
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    problems: list[str] = []
    gpu: tuple[int, str] | None = None
    for entry in entries(text):
        if entry.value is None and entry.path[-1].startswith("GPU#"):
            try:
                gpu = _gpu(entry.path[-1])
                found.setdefault(gpu, [])
            except Unexpected as error:
                gpu = None
                problems.append(at_line(_ECC, entry.number, entry.path[-1], error))
        elif gpu is not None and entry.value is not None and "ECC Errors" in entry.path:
            found[gpu].append((entry.path[-1], entry.value))
    if not found:
        raise Unreadable("; ".join(problems) or f"{_ECC}: expected blocks that begin with GPU#0, got none")
    return ToolReport(tuple(_errors(found, problems)), tuple(problems))


def _errors(found: Mapping[tuple[int, str], Sequence[tuple[str, str]]], problems: list[str]) -> Iterator[Reading]:
    for (index, address), counters in found.items():
        words = Words(f"{_ECC}, GPU {index}", problems)
        sums: dict[str, int | None] = {}
        for name, value in counters:
            kind = name.rpartition(" ")[2]
            number = words.read(name, value, count)
            before = sums.get(kind, 0)
            # One unknown counter makes the sum unknown.
            sums[kind] = None if number is None or before is None else before + number
        yield Reading(
            index=index,
            bus_id=address,
            ecc_corrected=sums.get("Correctable"),
            ecc_uncorrected=sums.get("Uncorrectable"),
        )


def _gpu(heading: str) -> tuple[int, str]:
    found = _GPU.fullmatch(heading)
    if not found:
        raise Unexpected("GPU#<n> <model> <bus id>", heading)
    return whole(found[1], at_most=MAX_INDEX), bus_id(found[2])
