"""Content of the page of all devices, as a table: filters, order, one leaf. HTML:
`templates/devices.html`.

Called by `pages`. Filters and order work on the columns of the `CardTable`; values are made for the
devices of one leaf only.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from controller.dashboard import drawing
from controller.dashboard.cardpages import CardPages, Context, Query
from controller.dashboard.fleet import STATES, is_full
from controller.dashboard.pacing import breath, paced
from controller.dashboard.paging import page_slice
from controller.dashboard.reserved import by_card, reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import DESCENDING
from controller.insight.overview import Card, CardTable, vendor_name
from controller.scheduling.inventory import Device
from hami_dra.api.arrays import Ints, Positions

ON_LEAF: Final = 50


def _states(table: CardTable) -> Ints:
    """Return the place in STATES by row."""
    size = table.inventory.devices.size
    found = np.full(size, STATES.index("partly"), dtype=np.int64)
    found[is_full(table)] = STATES.index("full")
    found[table.free] = STATES.index("free")
    found[~table.usable] = STATES.index("unhealthy")
    return found


_COLUMNS: Final[Mapping[str, Callable[[CardTable], Ints]]] = {
    "state": _states,
    "memory": lambda table: table.memory_used,
    "cores": lambda table: table.cores_used,
    "slots": lambda table: table.slots_used,
}
"""By the value of `sort`; all but these sort by node and index."""


class DeviceRow(Struct, frozen=True):
    card: Card
    state: str
    """One of STATES."""


class DevicePages:
    def __init__(self, source: Source, cards: CardPages) -> None:
        self._source = source
        self._cards = cards
        self._table = CardTable(source.inventory)

    async def devices(self, query: Query) -> Context:
        found, sort = await self._found(query)
        shown = page_slice(found, query.get("leaf", ""), ON_LEAF)
        self._table.refresh()
        return {
            "leaf": shown,
            "reserved": by_card(reserved(self._source), self._table),
            "rows": self._rows(shown.items),
            "vendors": [vendor_name(self._table.drivers[number]) for number in self._table.ordered_drivers()],
            "states": STATES,
            "asked": {**{key: query.get(key, "").strip() for key in ("q", "vendor", "state")}, **sort},
            "total": len(self._table.cards),
        }

    async def exported_devices(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield the rows of the page without pagination."""
        found, _ = await self._found(query)
        for start in range(0, len(found), ON_LEAF):
            for row in self._rows(found[start : start + ON_LEAF]):
                card = row.card
                yield {
                    "node": card.node,
                    "device": card.id,
                    "uuid": card.uuid,
                    "product": card.product,
                    "vendor": card.vendor,
                    "state": row.state,
                    "health": card.health,
                    "memoryBytes": card.memory_total,
                    "memoryAllocatedBytes": card.memory_used,
                    "cores": card.cores_total,
                    "coresAllocated": card.cores_used,
                    "slots": card.shares_total,
                    "slotsAllocated": card.shares_used,
                    "pods": sorted({f"{each.namespace}/{each.pod}" for each in card.tenants if each.pod}),
                }
            await breath()

    async def _found(self, query: Query) -> tuple[list[tuple[str, str]], dict[str, str]]:
        """Return the devices that the query asks for, as node and id, in order; and what says the order."""
        self._table.refresh()
        rows, sort = self._ordered(self._picked(query), query)
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
        return found, sort

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

    def _ordered(self, rows: Positions, query: Query) -> tuple[Positions, dict[str, str]]:
        devices, nodes = self._source.inventory.devices, self._source.inventory.nodes
        place = devices.node[rows]
        names = nodes.rank[np.maximum(place, 0)] if nodes.size else place
        by_node = np.lexsort((devices.index[rows], self._table.driver[rows], names))
        rows, key = rows[by_node], query.get("sort", "")
        descending = query.get("order", "") == DESCENDING
        asked = {"order": DESCENDING} if descending else {}
        if key in _COLUMNS:
            values = _COLUMNS[key](self._table)[rows]
            return rows[np.argsort(-values if descending else values, kind="stable")], {"sort": key} | asked
        if key == "node":
            return (rows[::-1] if descending else rows), {"sort": key} | asked
        return rows, {}

    def _rows(self, found: Sequence[tuple[str, str]]) -> list[DeviceRow]:
        cards = {card.id: card for card in self._cards.cards_on(list({node for node, _ in found})).cards}
        return [DeviceRow(cards[key], drawing.state_of(cards[key])) for _, key in found if key in cards]


def _names(device: Device) -> str:
    """Return product and UUID, in which a text is looked for."""
    profile = device.profile
    return f"{device.string_attribute(profile.product)} {device.string_attribute(profile.uuid)}"
