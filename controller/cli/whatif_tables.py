"""A comparison as tables; called by `hami-dra whatif`. Unchanged values are left out; the conclusion comes first."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from controller.cli.tables import Line, TextLayout, codes, device_names, paragraph, tables, without_pod
from controller.views.columns import Column, Columns, text_column
from controller.views.comparison import Comparison, Eviction, Move, NodeChange, PackingChange, Placement, Unplaced

T = TypeVar("T", NodeChange, PackingChange)
GIB: Final = 1 << 30
_ROWS: Final = 50
"""Rows of one table; of more only the number is given, and -o json has all of them."""


def comparison(found: Comparison, layout: TextLayout) -> list[Line]:
    """Return the conclusion, then what changes."""
    nodes = [each for each in found.nodes if (each.before, each.pods_before) != (each.after, each.pods_after)]
    parts: tuple[tuple[Columns[Any], Sequence[Any]], ...] = (
        (_UNPLACED, found.unplaced),
        (_EVICTED, found.evicted),
        (_MOVED, found.moved),
        (_PLACED, found.placed),
        (_NODES, nodes),
        (VENDORS, found.vendors),
    )
    return [*paragraph(found.conclusion, layout, colour="bold"), *tables(parts, layout, most=_ROWS)]


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _change(name: str, figure: Callable[[Any], str]) -> Column[T]:
    """Return a column of a figure before and after; `-` where there is nothing to have one."""

    def text(row: T) -> str:
        return _arrow(figure(row.before) if row.before else "-", figure(row.after) if row.after else "-")

    return text_column(name, text)


_UNPLACED: Final[Columns[Unplaced]] = (
    text_column("unplaced", lambda each: each.pod),
    text_column("was on", lambda each: each.was_on or ("(new)" if each.new else "(waits)")),
    text_column("codes", lambda each: codes(each.reasons), wide=True),
    text_column("why", lambda each: without_pod(each.error or each.message, each.pod)),
)
_EVICTED: Final[Columns[Eviction]] = (
    text_column("evicted", lambda each: each.pod),
    text_column("node", lambda each: each.node),
    text_column("for", lambda each: each.preemptor),
)
_MOVED: Final[Columns[Move]] = (
    text_column("moved", lambda each: each.pod),
    text_column("from", lambda each: each.from_node),
    text_column("devices", lambda each: device_names(each.from_devices)),
    text_column("to", lambda each: each.to_node),
    text_column("devices", lambda each: device_names(each.to_devices)),
)
_PLACED: Final[Columns[Placement]] = (
    text_column("placed", lambda each: each.pod),
    text_column("node", lambda each: each.node),
    text_column("devices", lambda each: device_names(each.devices)),
)
_NODES: Final[Columns[NodeChange]] = (
    text_column("node", lambda each: each.node),
    _change("devices", lambda node: str(node.cards)),
    _change("free", lambda node: str(node.free_cards)),
    _change("memory, gib", lambda node: f"{node.memory_used / GIB:.0f}/{node.memory_total / GIB:.0f}"),
    _change("cores", lambda node: f"{node.cores_used}/{node.cores_total}"),
    text_column("pods", lambda each: _arrow(str(each.pods_before), str(each.pods_after))),
)
VENDORS: Final[Columns[PackingChange]] = (
    text_column("vendor", lambda each: each.vendor),
    _change("devices", lambda packing: str(packing.cards)),
    _change("free", lambda packing: str(packing.free_cards)),
    _change("partly used", lambda packing: str(packing.partly_used_cards)),
    _change(
        "free islands of 2, 4, 8",
        lambda packing: ", ".join(str(number) for _, number in sorted(packing.free_islands.items())),
    ),
    _change("fragmentation", lambda packing: f"{packing.fragmentation:.0%}"),
    _change("empty nodes", lambda packing: str(packing.empty_nodes)),
)
