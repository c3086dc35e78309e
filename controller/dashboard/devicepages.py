"""Content of the pages of all nodes, as pictures of their devices, and of all devices, as a table. HTML:
`templates/nodes.html`, `templates/devices.html`.

Called by `pages`. Filters and order of devices work on the columns of the `CardTable`; values are
made for the devices of one leaf only.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from controller.dashboard import drawing
from controller.dashboard.cardpages import NODES_ON_LEAF, CardsTable
from controller.dashboard.fleet import STATES, NodeRow, is_full, node_rows, number_of_nodes, picked, vendors_of
from controller.dashboard.pacing import breath, paced
from controller.dashboard.reserved import reserved
from controller.dashboard.tables import DESCENDING, Context, Query
from controller.inventory import Device
from controller.views.columns import Column, Columns, plain
from controller.views.overview import Card, CardTable, by_card, vendor_name
from hami_dra.api.arrays import Ints, Positions

_NODES: Final[Columns[NodeRow]] = (
    plain("node", lambda row: row.name, sort=True),
    plain("vendors", lambda row: row.vendors),
    plain("state", lambda row: row.state),
    plain("ready", lambda row: row.ready),
    plain("cordoned", lambda row: row.cordoned),
    plain("devices", lambda row: row.cards),
    plain("free", lambda row: row.free_cards, sort=lambda row: -row.free_cards, exported="freeDevices"),
    plain("unhealthyDevices", lambda row: row.unhealthy_cards),
    plain("memoryBytes", lambda row: row.memory_total),
    plain(
        "used",
        lambda row: row.memory_used,
        sort=lambda row: (-row.fill, row.free_cards),
        exported="memoryAllocatedBytes",
    ),
)


class NodeTable(CardsTable[NodeRow]):
    columns = _NODES
    asks = ("q", "vendor", "state", "sort")
    on_leaf = NODES_ON_LEAF

    async def context(self, query: Query) -> Context:
        context = await super().context(query)
        return {
            **context,
            "machines": self._cards.machines(context["rows"], reserved(self._source)),
            "vendors": vendors_of(self._table),
            "total": number_of_nodes(self._table),
        }

    async def find(self, query: Query) -> list[NodeRow]:
        self._table.refresh()
        rows = node_rows(self._table)
        await breath()
        text, vendor, state = (query.get(key, "").strip() for key in ("q", "vendor", "state"))
        return picked(rows, text=text, vendor=vendor, state=state)


def _states(table: CardTable) -> Ints:
    """Return the place in STATES by row."""
    size = table.inventory.devices.size
    found = np.full(size, STATES.index("partly"), dtype=np.int64)
    found[is_full(table)] = STATES.index("full")
    found[table.free] = STATES.index("free")
    found[~table.usable] = STATES.index("unhealthy")
    return found


def _places(table: CardTable) -> Ints:
    """Return the place in the order of node, driver and index by row."""
    devices, nodes = table.inventory.devices, table.inventory.nodes
    size = devices.size
    node = devices.node[:size]
    names = nodes.rank[np.maximum(node, 0)] if nodes.size else node
    found = np.empty(size, dtype=np.int64)
    found[np.lexsort((devices.index[:size], table.driver, names))] = np.arange(size)
    return found


class DeviceRow(Struct, frozen=True):
    card: Card
    state: str
    """One of STATES."""


_DEVICES: Final[Columns[Any]] = (
    Column(
        "node",
        "Device",
        _places,
        {"node": lambda row: row.card.node, "device": lambda row: row.card.id, "uuid": lambda row: row.card.uuid},
    ),
    Column(
        "product",
        "Product",
        exported={"product": lambda row: row.card.product, "vendor": lambda row: row.card.vendor},
        classes="",
    ),
    Column("state", "State", _states, {"state": lambda row: row.state, "health": lambda row: row.card.health}),
    Column(
        "memory",
        "Memory",
        lambda table: table.memory_used,
        {"memoryBytes": lambda row: row.card.memory_total, "memoryAllocatedBytes": lambda row: row.card.memory_used},
        number=True,
        classes="",
    ),
    Column(
        "cores",
        "Cores",
        lambda table: table.cores_used,
        {"cores": lambda row: row.card.cores_total, "coresAllocated": lambda row: row.card.cores_used},
        number=True,
    ),
    Column(
        "slots",
        "Slots",
        lambda table: table.slots_used,
        {"slots": lambda row: row.card.shares_total, "slotsAllocated": lambda row: row.card.shares_used},
        number=True,
    ),
    Column(
        "workloads",
        "Workloads",
        exported={
            "pods": lambda row: sorted({f"{each.namespace}/{each.pod}" for each in row.card.tenants if each.pod})
        },
        classes="",
    ),
)
"""What a column sorts by are numbers by row of the table."""


class DeviceTable(CardsTable[DeviceRow]):
    columns = _DEVICES
    asks = ("q", "vendor", "state")

    async def context(self, query: Query) -> Context:
        context = await super().context(query)
        self._table.refresh()
        return {
            **context,
            "reserved": by_card(reserved(self._source), self._table),
            "vendors": vendors_of(self._table),
            "total": len(self._table.cards),
        }

    async def rows(self, found: Sequence[tuple[str, str]]) -> AsyncIterator[DeviceRow]:
        for start in range(0, len(found), self.on_leaf):
            some = found[start : start + self.on_leaf]
            cards = {card.id: card for card in self._cards.cards_on(list({node for node, _ in some})).cards}
            for _, key in some:
                if key in cards:
                    yield DeviceRow(cards[key], drawing.state_of(cards[key]))
            await breath()

    async def ordered(self, query: Query) -> tuple[list[tuple[str, str]], dict[str, str]]:
        """Return the devices that the query asks for, as node and id, in order."""
        self._table.refresh()
        rows, sort = self._sorted(self._picked(query), query)
        text = query.get("q", "").strip()
        devices = self._source.inventory.devices
        found: list[tuple[str, str]] = []
        await breath()
        async for row in paced(rows.tolist()):
            device = devices.devices[row] if row < devices.size else None
            if device is None:
                continue  # gone meanwhile
            place = int(devices.node[row])
            node = self._source.inventory.nodes.names[place] if place >= 0 else ""
            if not text or text in node or text in str(device.id) or text in _names(device):
                found.append((node, str(device.id)))
        return found, {key: query.get(key, "").strip() for key in self.asks} | sort

    def _picked(self, query: Query) -> Positions:
        """Return the rows of the vendor, in the state, that the query names."""
        table, rows = self._table, self._table.cards
        vendor, state = query.get("vendor", ""), query.get("state", "")
        if vendor:
            numbers = [number for number, driver in enumerate(table.drivers) if vendor_name(driver) == vendor]
            rows = rows[np.isin(table.driver[rows], numbers)]
        if state:
            rows = rows[_states(table)[rows] == (STATES.index(state) if state in STATES else len(STATES))]
        return rows

    def _sorted(self, rows: Positions, query: Query) -> tuple[Positions, dict[str, str]]:
        rows = rows[np.argsort(_places(self._table)[rows])]
        keys = {column.name: column.sort for column in self.columns if column.sort is not None}
        name = query.get("sort", "")
        if name not in keys:
            return rows, {}
        values = keys[name](self._table)[rows]
        if query.get("order", "") != DESCENDING:
            return rows[np.argsort(values, kind="stable")], {"sort": name}
        return rows[np.argsort(-values, kind="stable")], {"sort": name, "order": DESCENDING}


def _names(device: Device) -> str:
    """Return product and UUID, in which a text is looked for."""
    profile = device.profile
    return f"{device.string_attribute(profile.product)} {device.string_attribute(profile.uuid)}"
