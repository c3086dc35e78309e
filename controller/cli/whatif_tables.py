"""A comparison as tables; called by `hami-dra whatif`.

Unchanged values are left out; the conclusion comes last.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from controller.cli.tables import print_wide
from controller.insight.overview import NodeView, Packing
from controller.insight.whatif import Comparison, Move, Unplaced

GIB: Final = 1 << 30
_ROWS: Final = 50
"""Rows of one table; of more only the number is given, and -o json has all of them."""


def print_comparison(found: Comparison) -> None:
    tables = [
        _vendors(found),
        _nodes(found),
        _moved(found.moved),
        _table(("PLACED", "NODE", "DEVICES"), ((each.pod, each.node, _names(each.devices)) for each in found.placed)),
        _unplaced(found.unplaced),
    ]
    for table, left in filter(None, tables):
        print_wide(table, *([f"and {left} more: -o json has all of them"] if left else []), "")
    print_wide(found.conclusion)


Shown = tuple[Table, int] | None
"""A table and the number of rows left out; None if there is nothing to show."""


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Shown:
    every = list(rows)
    if not every:
        return None
    table = Table(*headers, box=None, pad_edge=False)
    for row in every[:_ROWS]:
        table.add_row(*map(Text, row))  # names and messages are not markup
    return table, max(len(every) - _ROWS, 0)


def _vendors(found: Comparison) -> Shown:
    headers = ("VENDOR", "CARDS", "FREE", "PARTLY USED", "FREE ISLANDS OF 2, 4, 8", "FRAGMENTATION", "EMPTY NODES")
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


def _nodes(found: Comparison) -> Shown:
    headers = ("NODE", "CARDS", "FREE", "MEMORY GiB", "CORES", "PODS")
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


def _moved(moves: Sequence[Move]) -> Shown:
    return _table(
        ("MOVED", "FROM", "DEVICES", "TO", "DEVICES"),
        (
            (each.pod, each.from_node, _names(each.from_devices), each.to_node, _names(each.to_devices))
            for each in moves
        ),
    )


def _unplaced(pods: Sequence[Unplaced]) -> Shown:
    return _table(
        ("UNPLACED", "WAS ON", "REASONS", "MESSAGE"),
        (
            (
                each.pod,
                each.was_on or ("(new)" if each.new else "(waits)"),
                ", ".join(f"{count} {code}" for code, count in sorted(each.reasons.items())),
                each.error or each.message,
            )
            for each in pods
        ),
    )


def _names(devices: Iterable[str]) -> str:
    return ", ".join(device.rpartition("/")[2] for device in devices)
