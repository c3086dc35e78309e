"""Topology matrices in the format of `nvidia-smi topo -m`, which other vendors' tools print too.

Called by the back ends of MetaX and Enflame. In: the tool's output. Out: links between cards, and
their distances on PCIe. Pure.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from hami_dra.api.hardware import PcieDistance
from hami_dra.discovery.errors import Unexpected
from hami_dra.discovery.listing_reader import ListingReader
from hami_dra.discovery.reading import MAX_INDEX, said, whole

WORDS: Final[Mapping[str, PcieDistance]] = {
    "PSB": PcieDistance.BOARD,
    "PIX": PcieDistance.SINGLE_SWITCH,
    "PXB": PcieDistance.MULTIPLE_SWITCHES,
    "PHB": PcieDistance.HOST_BRIDGE,
    "NODE": PcieDistance.SAME_CPU,
    "SYS": PcieDistance.CROSS_CPU,
    "SOC": PcieDistance.CROSS_CPU,
}
_SELF: Final = "X"
_MAX_LANES: Final = 99


class Matrix(Struct, frozen=True):
    """The matrix by card index, from each card's row."""

    links: Mapping[int, Mapping[int, int]]
    distances: Mapping[int, Mapping[int, PcieDistance]]
    problems: tuple[str, ...] = ()


def parse_matrix(text: str, tool: str, *, devices: tuple[str, ...], link: str) -> Matrix:
    """Parse a matrix. `devices`: the start of rows (`GPU` for GPU0); `link`: the word of the fast
    link, with or without a number of lanes.

    Columns of other devices (network cards) and of affinities are skipped. Raises Unreadable
    without a header.
    """
    header = re.compile(rf"(?:{'|'.join(devices)})\s*([0-9]{{1,4}})", re.IGNORECASE)
    linked = re.compile(rf"(?:{link})([0-9]{{0,2}})")
    columns: list[int] = []
    links: dict[int, dict[int, int]] = {}
    distances: dict[int, dict[int, PcieDistance]] = {}
    reader = ListingReader(tool)
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        matches = [header.fullmatch(word) for word in words]
        if not words or not matches[0]:
            continue
        if not columns:
            columns = [int(match[1]) for match in matches if match]
            continue
        with reader.line(number, line):
            row = whole(matches[0][1], at_most=MAX_INDEX)
            cells = _cells(row, columns, words[1:])
            found = {peer: _lanes(cell, linked) for peer, cell in cells.items()}
            links[row] = {peer: lanes for peer, lanes in found.items() if lanes}
            distances[row] = {peer: WORDS[cell] for peer, cell in cells.items() if cell in WORDS}
    reader.require(columns, f"a matrix that begins with {devices[0]}0, got none")
    return Matrix(links, distances, tuple(reader.problems))


def _cells(row: int, columns: list[int], words: list[str]) -> dict[int, str]:
    if len(words) < len(columns):
        raise Unexpected(f"{len(columns)} columns", " ".join(words))
    cells = dict(zip(columns, (word.upper() for word in words), strict=False))
    if cells.pop(row, None) != _SELF:
        raise Unexpected(f"{_SELF} in the column of the row itself", " ".join(words))
    return cells


def _lanes(cell: str, linked: re.Pattern[str]) -> int:
    """Return the lanes; 0: no link. A link without a number counts as one lane."""
    if found := linked.fullmatch(cell):
        return whole(found[1], at_most=_MAX_LANES) if found[1] else 1
    if said(cell) and cell not in WORDS:
        raise Unexpected(f"a link or one of {', '.join(WORDS)}", cell)
    return 0
