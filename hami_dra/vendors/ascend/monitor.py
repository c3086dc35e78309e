"""Readings of Ascend NPUs, from the table of `npu-smi info`. Pure parsers.

Boards with a 310P do not report their power (`NA`). The memory in use is all that the card's
programs and its driver take.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from hami_dra.api.hardware import Card
from hami_dra.discovery.errors import DiscoveryError, ToolFailed, Unexpected, Unreadable
from hami_dra.discovery.indented import values_of
from hami_dra.discovery.reading import whole
from hami_dra.discovery.tool import Tool
from hami_dra.monitor.listings import ListingSampler
from hami_dra.monitor.readings import MAX_COUNT, Reading, Sample, ToolReport, Words, amount, celsius, percent, watts
from hami_dra.vendors.ascend import discovery as ascend
from hami_dra.vendors.ascend.records import AscendRecord
from hami_dra.vendors.ascend.table import INFO, ChipRow, parse_table

ECC: Final = "npu-smi info -t ecc"
_AT_ONCE: Final = 4
"""Chips that one look asks about."""
_MEMORIES: Final = ("HBM", "DDR")
_KINDS: Final = {"ecc_corrected": "Single Bit Error Count", "ecc_uncorrected": "Double Bit Error Count"}

Errors = Mapping[str, int]
"""Field of `Reading` → count."""


def parse_ecc(text: str) -> Errors:
    """Parse the counts of one chip: those of its memories together. Raises Unreadable."""
    values = values_of(text)
    found: dict[str, int] = {}
    for field, kind in _KINDS.items():
        for name in (f"{memory} {kind}" for memory in _MEMORIES):
            if values.get(name, ""):
                try:
                    count = whole(values[name], at_most=MAX_COUNT, what=name)
                except Unexpected as error:
                    raise Unreadable(f"{ECC}: {error}") from error
                found[field] = found.get(field, 0) + count
    if not found:
        raise Unreadable(f"{ECC}: expected counts of errors, got none")
    return found


class AscendSampler:
    """Implements `hami_dra.monitor.readings.Sampler`: adds the counts of errors to what the listing
    tells. A chip that cannot tell them has none.

    The tool takes a moment per chip and counters rarely change: each reading asks about a few chips.
    """

    def __init__(self, tool: Tool, listing: ListingSampler) -> None:
        self._ecc_tool = tool
        self._listing = listing
        self.source = listing.source
        self._known: dict[str, Errors] = {}
        """By uuid."""
        self._next = 0

    def sample(self, cards: Sequence[Card]) -> Sample[Reading]:
        sample = self._listing.sample(cards)
        chips = [
            card
            for card in cards
            if isinstance(card, AscendRecord) and card.present and None not in (card.npu_id, card.chip_id)
        ]
        problems = [problem for card in self._turn(chips) if (problem := self._look(card))]
        readings = {uuid: replace(reading, **self._known.get(uuid, {})) for uuid, reading in sample.readings.items()}
        return Sample(readings, (*sample.problems, *problems))

    def close(self) -> None:
        self._listing.close()

    def _turn(self, chips: Sequence[AscendRecord]) -> Sequence[AscendRecord]:
        """Return the chips to ask about this time, each in its turn."""
        if not chips:
            return ()
        begin = self._next % len(chips)
        self._next = begin + _AT_ONCE
        return (*chips[begin:], *chips[:begin])[:_AT_ONCE]

    def _look(self, card: AscendRecord) -> str:
        """Read one chip. Returns a problem, or nothing."""
        self._known.pop(card.uuid, None)
        try:
            self._known[card.uuid] = parse_ecc(
                self._ecc_tool.run("info", "-t", "ecc", "-i", str(card.npu_id), "-c", str(card.chip_id))
            )
        except ToolFailed:
            return ""  # not told for this chip, or by this version of the tool
        except DiscoveryError as error:
            return f"NPU {card.npu_id}, chip {card.chip_id}: {error}"
        return ""


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
