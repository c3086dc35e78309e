"""Readings of Kunlunxin XPUs, from `xpu-smi -m` and, for memory errors, `xpu-smi -q -x`. Pure parsers.

`-m` has neither names nor units: its columns are known by position (from 1: 1 PCI address, 3 minor
number, 4 serial number, 5 degrees, 9 watts, 18 and 19 memory in use and total in MiB, 20 percent,
21 firmware, 22 the product's name). A line therefore counts only if the recognisable words are in
their columns.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from hami_dra.discovery.errors import Unexpected
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.reading import MAX_INDEX, bus_id, identity, said, whole
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.listings import ListingSampler, reported
from hami_dra.monitor.readings import Reading, ToolReport, Words, amount, celsius, count, percent, watts
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.kunlunxin.discovery import column_words, xml_blocks

TOOL: Final = replace(kunlunxin.TOOL, timeout=10.0)
_COLUMNS: Final = "xpu-smi -m"
_XML: Final = "xpu-smi -q -x"
_NUMERIC: Final = range(4, 20)
"""Positions of numbers between the serial number and the firmware."""
_FIRMWARE: Final = 20
_NAME: Final = 21
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def sampler(tool: Tool = TOOL) -> ListingSampler:
    return ListingSampler(tool, ((("-m",), parse_columns), (("-q", "-x"), parse_xml)))


def parse_columns(text: str) -> ToolReport:
    """Parse `xpu-smi -m`. Raises Unreadable."""
    readings: list[Reading] = []
    reader = ListingReader(_COLUMNS)
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            with reader.line(number, line):
                readings.append(_columns(column_words(line), Words(f"{_COLUMNS}, line {number}", reader.problems)))
    return reported(reader, readings, "a line for each XPU, got none")


def _columns(line: Sequence[str], words: Words) -> Reading:
    for place in _NUMERIC:
        if said(line[place]) and not _NUMBER.fullmatch(line[place]):
            raise Unexpected(f"a number in column {place + 1}", line[place])
    for place, what in ((_FIRMWARE, "a firmware version"), (_NAME, "the product's name")):
        if said(line[place]) and _NUMBER.fullmatch(line[place]):
            raise Unexpected(f"{what} in column {place + 1}", line[place])
    total = words.read("memory in all", line[18], lambda text: amount(text, "MiB"))
    used = words.read("memory in use", line[17], lambda text: amount(text, "MiB"))
    if total is None or used is None or used > total:
        raise Unexpected("memory in use, then memory in all, in columns 18 and 19", f"{line[17]} {line[18]}")
    return Reading(
        index=whole(line[2], at_most=MAX_INDEX, what="a minor number"),
        bus_id=bus_id(line[0]),
        memory_total=total,
        memory_used=used,
        utilization=words.read("utilisation", line[19], lambda text: percent(text, "%")),
        temperature=words.read("temperature", line[4], lambda text: celsius(text, "C")),
        power=words.read("power", line[8], lambda text: watts(text, "W")),
    )


def parse_xml(text: str) -> ToolReport:
    """Parse `xpu-smi -q -x`. Truncated output keeps the cards before the break. Raises Unreadable."""
    _, blocks, problems = xml_blocks(text)
    reader = ListingReader(_XML, problems)
    readings = []
    for place, values in blocks:
        with reader.entry(place):
            readings.append(_element(values, Words(place, problems)))
    return reported(reader, readings, "the XML elements xpu, got none")


def _element(values: Mapping[str, str], words: Words) -> Reading:
    def read_count(path: str) -> int | None:
        return words.read(path, values.get(path), count)

    total = words.read("total", values.get("fb_memory_usage/total"), amount)
    used = words.read("used", values.get("fb_memory_usage/used"), amount)
    uuid = said(values.get("uuid")) or said(values.get("serial"))
    return Reading(
        uuid=identity(uuid, "a uuid or serial number"),
        memory_total=total,
        memory_used=words.within(used, total),
        utilization=words.read("xpu_util", values.get("utilization/xpu_util"), percent),
        temperature=words.read("xpu_temp", values.get("temperature/xpu_temp"), celsius),
        power=words.read("power_draw", values.get("power_readings/power_draw"), watts),
        ecc_corrected=read_count("ecc_errors/volatile/dram_correctable"),
        ecc_uncorrected=read_count("ecc_errors/volatile/dram_uncorrectable"),
    )
