"""What counts as free as a whole: a device, or all devices of a node. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from controller.inventory import Inventory
from controller.moves import Cell, Movable
from controller.views.overview import NO_CARD, CardTable


class Cells(NamedTuple):
    free: list[Cell]
    candidates: list[Cell]
    """Those that would be free without their tenants, all of which may move; the cheapest first."""
    others: int
    """Cells in use that moves cannot free."""


def cells_of(inventory: Inventory, movables: Sequence[Movable], *, nodes: bool, least: int = 1) -> Cells:
    """Return the devices in service, or with `nodes` the nodes all of whose devices are. `least`: a
    node with fewer devices does not count.
    """
    table = CardTable(inventory)
    table.refresh()
    now = table.free
    with inventory.trial() as trial:
        trial.remove_all([each.uid for each in movables], {uid for each in movables for uid in each.claims})
        table.refresh()
        once_moved = table.free
    groups, members, cell_of = _groups(table, nodes=nodes)
    tenants: dict[int, dict[str, Movable]] = {}
    for each in movables:
        for device in each.devices:
            if (row := inventory.devices.row_of(device)) >= 0 and cell_of[row] != NO_CARD:
                tenants.setdefault(cell_of[row], {})[each.uid] = each
    free: list[Cell] = []
    candidates: list[Cell] = []
    others = 0
    for number, rows in enumerate(groups):
        if len(rows) < least:
            continue
        devices = frozenset(inventory.devices.device(row).id for row in members[number])
        node = int(inventory.devices.node[rows[0]])
        name = inventory.nodes.names[node] if nodes else str(inventory.devices.device(rows[0]).id)
        cell = Cell(name, node, nodes, devices, tuple(tenants.get(number, {}).values()))
        if now[rows].all():
            free.append(cell)
        elif once_moved[rows].all() and cell.tenants:
            candidates.append(cell)
        else:
            others += 1
    return Cells(free, sorted(candidates, key=lambda each: each.cost), others)


def _groups(table: CardTable, *, nodes: bool) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Return of each cell the rows of its cards, and of its devices; and by row its cell, or NO_CARD.

    Two nodes with two cards each, the last of which has a part of row 4:

        nodes     [[0, 1], [2, 3]], [[0, 1], [2, 3, 4]], [0, 0, 1, 1, 1]
        devices   [[0], [1], [2], [3]], [[0], [1], [2], [3, 4]], [0, 1, 2, 3, 3]
    """
    cell_of = [NO_CARD] * table.inventory.devices.size
    groups: list[list[int]] = []
    number_of: dict[int, int] = {}
    for row in table.cards.tolist():
        node = int(table.inventory.devices.node[row])
        if node >= 0:
            number = cell_of[row] = number_of.setdefault(node if nodes else row, len(groups))
            if number == len(groups):
                groups.append([])
            groups[number].append(row)
    members = [[*rows] for rows in groups]
    for row in np.flatnonzero(table.parent != NO_CARD).tolist():
        number = cell_of[row] = cell_of[int(table.parent[row])]
        if number != NO_CARD:
            members[number].append(row)
    return groups, members, cell_of
