"""Content of the page of all nodes, as pictures of their devices. HTML: `templates/nodes.html`.

Called by `pages`. Values only; see `cardpages`.
"""

from typing import Final

from controller.dashboard.cardpages import NODES_ON_LEAF, CardPages
from controller.dashboard.fleet import STATES, NodeRow, node_rows, number_of_nodes, picked, vendors_of
from controller.dashboard.pacing import breath
from controller.dashboard.reserved import reserved
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, PageTable, Query
from controller.views.columns import Columns, plain
from controller.views.overview import CardTable

_COLUMNS: Final[Columns[NodeRow, NodeRow]] = (
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


class NodeTable(PageTable[NodeRow, NodeRow]):
    columns = _COLUMNS
    asks = ("q", "vendor", "state", "sort")
    on_leaf = NODES_ON_LEAF

    def __init__(self, source: Source, cards: CardPages) -> None:
        self._source = source
        self._cards = cards
        self._table = CardTable(source.inventory)

    async def context(self, query: Query) -> Context:
        context = await super().context(query)
        return {
            **context,
            "machines": self._cards.machines(context["rows"], reserved(self._source)),
            "vendors": vendors_of(self._table),
            "states": STATES,
            "orders": ("free", "used"),
            "total": number_of_nodes(self._table),
        }

    async def find(self, query: Query) -> list[NodeRow]:
        self._table.refresh()
        rows = node_rows(self._table)
        await breath()
        text, vendor, state = (query.get(key, "").strip() for key in ("q", "vendor", "state"))
        return picked(rows, text=text, vendor=vendor, state=state)
