"""How the devices of one vendor on one node are connected, as shapes to draw. Pure.

In: drawn cards, and the PCIe root of each. Out: a `Fabric` (fast links) and a `PcieTree`. Templates
turn both into SVG; lengths are in units of the viewBox.

| links | drawn as |
|---|---|
| every pair, with more lanes than a device has | `switch`: all devices at one switch |
| every pair of more than four devices | `mesh`: the same, without a switch between them |
| other | `links`: devices around a circle, a line for each pair |
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from controller.dashboard.drawing import DrawnCard

SIZE: Final = 320
"""Width of the link drawing."""
MOST_LANES: Final = 18
"""Lanes of a device at most (NVLink 4 and 5). Each of eight H100 has 18 to each of the seven
others: no direct links can do that, so there is a switch.
"""
MOST_LINES: Final = 4
"""Devices that are all linked to one another, at most, for a drawing with a line for each pair."""
_COLUMN: Final = 48
_LEVEL: Final = 58


class Dot(Struct, frozen=True):
    x: float
    y: float
    number: str
    state: str


class LinkLine(Struct, frozen=True):
    x1: float
    y1: float
    x2: float
    y2: float
    lanes: int
    one: str
    other: str

    @property
    def weight(self) -> int:
        """Return which of six line widths to use."""
        return min(self.lanes, 6)


class Fabric(Struct, frozen=True):
    kind: Literal["switch", "mesh", "links"]
    height: int
    dots: tuple[Dot, ...]
    lines: tuple[LinkLine, ...]
    """`switch` and `mesh`: from each device to the middle."""
    lanes: int = 0
    """Between each pair of a `switch` or `mesh`."""


class Branch(Struct, frozen=True):
    """One NUMA node or PCIe root with the x of what hangs on it."""

    x: float
    label: str
    below: tuple[float, ...]


class PcieTree(Struct, frozen=True):
    width: int
    numa: tuple[Branch, ...]
    roots: tuple[Branch, ...]
    dots: tuple[Dot, ...]


def fabric(cards: Sequence[DrawnCard]) -> Fabric | None:
    """Return the fast links between the cards, or None if there are none."""
    known = [each for each in cards if each.card.links and each.card.index is not None]
    pairs = [
        (a, b, lanes)
        for a, one in enumerate(known)
        for b in range(a + 1, len(known))
        if (lanes := _lanes(one.card.links, known[b].card.index))
    ]
    if not pairs:
        return None
    widths = {lanes for _, _, lanes in pairs}
    if len(known) > MOST_LINES and len(pairs) == len(known) * (len(known) - 1) // 2 and len(widths) == 1:
        return _around_the_middle(known, widths.pop())
    dots = _circle(known)
    lines = tuple(
        LinkLine(dots[a].x, dots[a].y, dots[b].x, dots[b].y, lanes, dots[a].number, dots[b].number)
        for a, b, lanes in pairs
    )
    return Fabric("links", SIZE, dots, lines)


def pcie_tree(cards: Sequence[DrawnCard], roots: Mapping[str, str]) -> PcieTree | None:
    """Return NUMA nodes, PCIe roots and cards as a tree, or None unless every card's root is known (by device id)."""
    if not cards or not all(roots.get(each.card.id) for each in cards):
        return None
    ordered = sorted(cards, key=lambda each: (each.card.numa, roots[each.card.id]))
    places = {each.card.id: _COLUMN * (place + 0.5) for place, each in enumerate(ordered)}
    dots = tuple(Dot(places[each.card.id], 2.6 * _LEVEL, each.number, each.state) for each in ordered)
    by_root: dict[tuple[int, str], list[float]] = {}
    for each in ordered:
        by_root.setdefault((each.card.numa, roots[each.card.id]), []).append(places[each.card.id])
    branches = {key: Branch(sum(below) / len(below), key[1], tuple(below)) for key, below in by_root.items()}
    by_numa: dict[int, list[float]] = {}
    for (numa, _), branch in branches.items():
        by_numa.setdefault(numa, []).append(branch.x)
    numa_nodes = tuple(
        Branch(sum(below) / len(below), str(numa), tuple(below)) for numa, below in sorted(by_numa.items())
    )
    return PcieTree(_COLUMN * len(ordered), numa_nodes, tuple(branches.values()), dots)


def _around_the_middle(cards: Sequence[DrawnCard], lanes: int) -> Fabric:
    """Return two rows of devices with a line from each to the middle between them."""
    half = -(-len(cards) // 2)
    dots = []
    for place, each in enumerate(cards):
        row, column = divmod(place, half)
        dots.append(Dot(round(SIZE * (column + 0.5) / half, 1), 26 if row == 0 else 174, each.number, each.state))
    lines = tuple(LinkLine(dot.x, dot.y, dot.x, 100, lanes, dot.number, "") for dot in dots)
    kind: Literal["switch", "mesh"] = "switch" if lanes * (len(cards) - 1) > MOST_LANES else "mesh"
    return Fabric(kind, 200, tuple(dots), lines, lanes)


def _circle(cards: Sequence[DrawnCard]) -> tuple[Dot, ...]:
    radius, middle = SIZE / 2 - 24, SIZE / 2
    dots = []
    for place, each in enumerate(cards):
        angle = 2 * math.pi * place / len(cards) - math.pi / 2
        x, y = middle + radius * math.cos(angle), middle + radius * math.sin(angle)
        dots.append(Dot(round(x, 1), round(y, 1), each.number, each.state))
    return tuple(dots)


def _lanes(row: str, index: int | None) -> int:
    if index is None or not 0 <= index < len(row) or row[index] == "-":
        return 0
    try:
        return int(row[index], 36)
    except ValueError:
        return 0
