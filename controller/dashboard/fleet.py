"""A few numbers per node for all nodes, over columns, so that 2,000 nodes cost milliseconds.

Used by `pages`. In: a refreshed `CardTable`. Out: `NodeRow`s of nodes that have cards. For the
cards of one node use `controller.views.overview`.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from controller.inventory import products_of
from controller.views.overview import CORDONED, READY, CardTable, vendor_name
from hami_dra.api.arrays import Ints

STATES: Final = ("free", "partly", "full", "unhealthy")
"""`free`: a whole card is free. `partly`: something is free, but no whole card. `full`: nothing is
free. `unhealthy`: the node or one of its cards is unusable.
"""
PARTS_OF_FULL: Final = 1000


class NodeRow(Struct, frozen=True):
    name: str
    vendors: tuple[str, ...]
    state: str
    """One of STATES."""
    ready: bool
    cordoned: bool
    cards: int
    free_cards: int
    unhealthy_cards: int
    memory_total: int
    memory_used: int

    @property
    def held_cards(self) -> int:
        return self.cards - self.free_cards

    @property
    def fill(self) -> int:
        """Return the memory in use, in thousandths."""
        return PARTS_OF_FULL * self.memory_used // self.memory_total if self.memory_total else 0


def node_rows(table: CardTable) -> list[NodeRow]:
    """Return the rows by name. Cards that several nodes can reach belong to none."""
    devices, nodes = table.inventory.devices, table.inventory.nodes
    rows = table.cards[devices.node[table.cards] >= 0]
    place = devices.node[rows]
    size = nodes.size

    def per_node(weights: Ints | None = None) -> list[int]:
        found: list[int] = np.bincount(place, weights=weights, minlength=size).astype(np.int64).tolist()
        return found

    cards, free = per_node(), per_node(table.free[rows].astype(np.int64))
    usable = per_node(table.usable[rows].astype(np.int64))
    full = per_node(is_full(table)[rows].astype(np.int64))
    total, used = per_node(devices.memory_total[rows]), per_node(table.memory_used[rows])
    vendors: dict[int, list[str]] = {}
    for driver in table.ordered_drivers():
        for node in np.flatnonzero(np.bincount(place[table.driver[rows] == driver], minlength=size)).tolist():
            vendors.setdefault(node, []).append(vendor_name(table.drivers[driver]))
    found = []
    for row, names in vendors.items():
        state = int(table.node_states[row])
        unhealthy = cards[row] - usable[row] if state == READY else 0
        found.append(
            NodeRow(
                name=nodes.names[row],
                vendors=tuple(names),
                state=_state(in_service=state == READY and not unhealthy, free=free[row], full=full[row] == cards[row]),
                ready=state in {READY, CORDONED},
                cordoned=state == CORDONED,
                cards=cards[row],
                free_cards=free[row],
                unhealthy_cards=unhealthy,
                memory_total=total[row],
                memory_used=used[row],
            )
        )
    found.sort(key=lambda row: row.name)
    return found


class ProductRow(Struct, frozen=True):
    """How many cards of one product there are, and in which of STATES."""

    name: str
    driver: str
    cards: int
    free: int
    partly: int
    full: int
    unhealthy: int


def product_rows(table: CardTable) -> list[ProductRow]:
    """Return the rows by product, for each driver that publishes it."""
    found = []
    full = is_full(table)
    for name, rows in products_of(table.inventory).groups(table.cards).items():
        for number in np.unique(table.driver[rows]).tolist():
            own = rows[table.driver[rows] == number]
            usable, free = own[table.usable[own]], int(table.free[own].sum())
            taken = int((full[usable] & ~table.free[usable]).sum())
            found.append(
                ProductRow(
                    name=name,
                    driver=table.drivers[number],
                    cards=len(own),
                    free=free,
                    partly=len(usable) - free - taken,
                    full=taken,
                    unhealthy=len(own) - len(usable),
                )
            )
    return found


def _state(*, in_service: bool, free: int, full: bool) -> str:
    if not in_service:
        return "unhealthy"
    if free:
        return "free"
    return "full" if full else "partly"


def is_full(table: CardTable) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which cards have nothing left: held exclusively, or one of the amounts is used up."""
    devices = table.inventory.devices
    size = devices.size
    full: np.ndarray[tuple[int], np.dtype[np.bool_]] = devices.exclusive[:size].copy()
    for total, used in (
        (devices.slots_total[:size], table.slots_used),
        (devices.cores_total[:size], table.cores_used),
        (devices.memory_total[:size], table.memory_used),
    ):
        full |= (total > 0) & (used >= total)
    return full


def number_of_nodes(table: CardTable) -> int:
    place = table.inventory.devices.node[table.cards]
    return int(np.count_nonzero(np.bincount(place[place >= 0])))


def vendors_of(table: CardTable) -> list[str]:
    return [vendor_name(table.drivers[number]) for number in table.ordered_drivers()]


def picked(rows: list[NodeRow], *, text: str = "", vendor: str = "", state: str = "") -> list[NodeRow]:
    """Return the nodes whose name contains the text, of the vendor, in the state; empty matches all."""
    return [
        row
        for row in rows
        if text in row.name and (not vendor or vendor in row.vendors) and (not state or row.state == state)
    ]
