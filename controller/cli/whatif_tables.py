"""A comparison as tables; called by `hami-dra whatif`.

Unchanged values are left out; the conclusion comes first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from controller.cli.tables import NONE, Line, TextLayout, TextTable, paragraph, without_pod
from controller.views.comparison import Comparison, Move, Unplaced
from controller.views.overview import NodeView, Packing

GIB: Final = 1 << 30
_ROWS: Final = 50
"""Rows of one table; of more only the number is given, and -o json has all of them."""


def comparison(found: Comparison, layout: TextLayout) -> list[Line]:
    """Return the conclusion, then what changes."""
    tables = [
        _unplaced(found.unplaced, wide=layout.wide),
        _moved(found.moved),
        _table(("PLACED", "NODE", "DEVICES"), ((each.pod, each.node, _names(each.devices)) for each in found.placed)),
        _nodes(found),
        _vendors(found),
    ]
    lines = paragraph(found.conclusion, layout, colour="bold")
    for table, left in tables:
        if table:
            lines += [Line(""), *table.lines(layout)]
            lines += [Line(f"and {left} more: -o json has all of them")] if left else []
    return lines


Limited = tuple[TextTable, int]
"""A table and the number of rows left out."""


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Limited:
    every = list(rows)
    table = TextTable(*headers)
    for row in every[:_ROWS]:
        table.add(*row)
    return table, max(len(every) - _ROWS, 0)


def _vendors(found: Comparison) -> Limited:
    headers = ("VENDOR", "DEVICES", "FREE", "PARTLY USED", "FREE ISLANDS OF 2, 4, 8", "FRAGMENTATION", "EMPTY NODES")
    figures: tuple[Callable[[Packing], str], ...] = (
        lambda one: str(one.cards),
        lambda one: str(one.free_cards),
        lambda one: str(one.partly_used_cards),
        lambda one: ", ".join(str(number) for _, number in sorted(one.free_islands.items())),
        lambda one: f"{one.fragmentation:.0%}",
        lambda one: str(one.empty_nodes),
    )
    return _table(
        headers,
        ((each.vendor, *(_change(each.before, each.after, figure) for figure in figures)) for each in found.vendors),
    )


def _nodes(found: Comparison) -> Limited:
    headers = ("NODE", "DEVICES", "FREE", "MEMORY, GIB", "CORES", "PODS")
    figures: tuple[Callable[[NodeView], str], ...] = (
        lambda one: str(one.cards),
        lambda one: str(one.free_cards),
        lambda one: f"{one.memory_used / GIB:.0f}/{one.memory_total / GIB:.0f}",
        lambda one: f"{one.cores_used}/{one.cores_total}",
    )
    return _table(
        headers,
        (
            (
                each.node,
                *(_change(each.before, each.after, figure) for figure in figures),
                _arrow(str(each.pods_before), str(each.pods_after)),
            )
            for each in found.nodes
            if (each.before, each.pods_before) != (each.after, each.pods_after)
        ),
    )


def _change(before: Any, after: Any, figure: Callable[[Any], str]) -> str:
    return _arrow(figure(before) if before else "-", figure(after) if after else "-")


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _moved(moves: Sequence[Move]) -> Limited:
    return _table(
        ("MOVED", "FROM", "DEVICES", "TO", "DEVICES"),
        (
            (each.pod, each.from_node, _names(each.from_devices), each.to_node, _names(each.to_devices))
            for each in moves
        ),
    )


def _unplaced(pods: Sequence[Unplaced], *, wide: bool) -> Limited:
    return _table(
        ("UNPLACED", "WAS ON", *(["CODES"] if wide else []), "WHY"),
        (
            (
                each.pod,
                each.was_on or ("(new)" if each.new else "(waits)"),
                *([_codes(each.reasons)] if wide else []),
                without_pod(each.error or each.message, each.pod),
            )
            for each in pods
        ),
    )


def _codes(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(reasons.items())) or NONE


def _names(devices: Iterable[str]) -> str:
    return ", ".join(device.rpartition("/")[2] for device in devices)
