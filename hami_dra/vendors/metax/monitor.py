"""Readings of MetaX GPUs, from `mx-smi dmon` and, for memory errors, `mx-smi --count-ecc`. Pure parsers.

`dmon` runs for one sample (`-c 1`), so that it ends on its own. It reports memory in use in whole
percents of a card only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from hami_dra.discovery.errors import Unexpected, Unreadable
from hami_dra.discovery.indented import entries
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.reading import MAX_INDEX, bus_id, said, whole
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.listings import Columns, ListingSampler, reported, row_reading
from hami_dra.monitor.readings import Reading, ToolReport, Words, count, row_of
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.metax.discovery import dmon_rows

TOOL: Final = replace(metax.TOOL, timeout=10.0)
_DMON: Final = "mx-smi dmon"
_ECC: Final = "mx-smi --count-ecc"
_SHOW: Final = (
    "--show-temperature", "--show-board-power", "--show-usage", "--show-memory", "--total-memory", "--show-bdf",
)  # fmt: skip
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
    names, units, rows = dmon_rows(text, {"dev", "bdfid"}, "the columns dev and bdfid, and below them their units")
    if units["dev"] != "idx":
        raise Unreadable(f"{_DMON}: expected the unit idx below dev: nothing tells what the numbers mean")
    readings: list[Reading] = []
    reader = ListingReader(_DMON)
    for number, line, cells in rows:
        with reader.line(number, line):
            row, words = row_of(names, cells, "cells", ", "), Words(f"{_DMON}, line {number}", reader.problems)
            hottest = next((column for column in _HOTTEST if said(row.get(column))), _HOTTEST[0])
            columns = Columns("total", "vram", "gpu", hottest, "power")
            gpu = whole(row["dev"], at_most=MAX_INDEX, what="a number of a GPU")
            readings.append(row_reading(columns, row, units, words, index=gpu, bus_id=bus_id(row["bdfid"])))
    return reported(reader, readings, "a row for each GPU, got none")


def parse_ecc(text: str) -> ToolReport:
    """Parse the counts below `ECC Errors` of each GPU, summed over the kinds of memory. Raises Unreadable."""
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    reader = ListingReader(_ECC)
    gpu: tuple[int, str] | None = None
    for entry in entries(text):
        if entry.value is None and entry.path[-1].startswith("GPU#"):
            gpu = None
            with reader.line(entry.number, entry.path[-1]):
                gpu = _gpu(entry.path[-1])
                found.setdefault(gpu, [])
        elif gpu is not None and entry.value is not None and "ECC Errors" in entry.path:
            found[gpu].append((entry.path[-1], entry.value))
    reader.require(found, "blocks that begin with GPU#0, got none")
    return reported(reader, list(_errors(found, reader.problems)))


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
