"""A plan of moves as tables; called by `hami-dra defrag`. The conclusion comes first."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from controller.cli.tables import Line, TextLayout, device_names, paragraph, tables
from controller.cli.whatif_tables import GIB, VENDORS
from controller.views.columns import Columns, text_column
from controller.views.comparison import packing_changes
from controller.views.moves import BudgetUse, MovePlan, PlannedMove
from hami_dra.api.printable import counted

_NAMED: Final = 20
"""Nodes and devices to be cordoned that are named."""


def plan(found: MovePlan, layout: TextLayout) -> list[Line]:
    """Return the conclusion, the moves in order, and what they bring."""
    lines = paragraph(found.conclusion, layout, colour="bold")
    if found.is_cut:
        lines += paragraph("Not all choices were tried: fewer moves may be enough.", layout)
    held = (*found.held_nodes, *found.held_devices)
    if held:
        more = f" and {len(held) - _NAMED} more (-o json has all)" if len(held) > _NAMED else ""
        lines += paragraph(f"Cordon until all moves are done: {', '.join(held[:_NAMED])}{more}", layout)
    stays = Counter(found.stays.values())
    parts: tuple[tuple[Columns[Any], Sequence[Any]], ...] = (
        (_MOVES, [*enumerate(found.moves, 1)]),
        (_BUDGETS, found.budgets),
        (_STAYS, sorted(stays.items(), key=lambda each: (-each[1], each[0]))),
        (VENDORS, packing_changes(found.before, found.after)),
    )
    return [*lines, *tables(parts, layout)]


_MOVES: Final[Columns[tuple[int, PlannedMove]]] = (
    text_column("move", lambda row: str(row[0])),
    text_column("pod", lambda row: row[1].pod),
    text_column("from", lambda row: row[1].from_node),
    text_column("devices", lambda row: device_names(row[1].from_devices)),
    text_column("to", lambda row: row[1].to_node),
    text_column("devices", lambda row: device_names(row[1].to_devices)),
    text_column("memory, gib", lambda row: f"{row[1].memory / GIB:.0f}"),
    text_column("devices freed", lambda row: str(row[1].frees)),
)
_BUDGETS: Final[Columns[BudgetUse]] = (
    text_column("disruption budget", lambda each: each.budget),
    text_column("allows now", lambda each: str(each.allowed)),
    text_column("moves", lambda each: str(each.moves)),
)
_STAYS: Final[Columns[tuple[str, int]]] = (
    text_column("cannot be moved", lambda row: counted(row[1], "pod")),
    text_column("why", lambda row: row[0]),
)
