"""Content of the quota page: limits for devices, and what namespaces hold. HTML:
`templates/quota.html`.

Values only; see `cardpages`. One filter serves both tables; each has its own columns to sort by.
"""

from typing import Final

from controller.dashboard.cardpages import CardPages, CardsTable
from controller.dashboard.fleet import node_rows
from controller.dashboard.pacing import breath
from controller.dashboard.tables import Context, PageTable, Query
from controller.inventory import QuotaLine
from controller.views.overview import NamespaceUsage, NamespaceView
from controller.views.shared_tables import NAMESPACES, QUOTAS

MOST_LIMITS: Final = 200
"""Limits on the page; the export has all."""
_NODES_AT_ONCE: Final = 20
"""Nodes processed between two yields to the event loop, while all cards are read."""


class LimitTable(PageTable[QuotaLine]):
    columns = QUOTAS

    async def find(self, query: Query) -> list[QuotaLine]:
        text = query.get("q", "").strip()
        return [line for line in self._source.inventory.quotas.lines(self._source.namespaces) if text in line.namespace]


class UsageTable(CardsTable[NamespaceView]):
    """The table of what namespaces hold; its page has the limits, too."""

    columns = NAMESPACES
    on_leaf = 100

    def __init__(self, cards: CardPages) -> None:
        super().__init__(cards)
        self.limits = LimitTable(cards.source)

    async def context(self, query: Query) -> Context:
        limits, by_limit = await self.limits.ordered(query)
        usage = await super().context(query)
        return {
            **usage,
            "limits": limits[:MOST_LIMITS],
            "limits_left_out": max(len(limits) - MOST_LIMITS, 0),
            "limit_columns": self.limits.columns,
            "cells": {**self.limits.cells, **self.cells},
            "asked": usage["asked"] | by_limit,
        }

    async def find(self, query: Query) -> list[NamespaceView]:
        """Yields to the event loop while it reads all cards: decisions take precedence."""
        self._table.refresh()
        names = [row.name for row in node_rows(self._table) if row.held_cards]
        usage = NamespaceUsage()
        for start in range(0, len(names), _NODES_AT_ONCE):
            usage.add(self._cards.cards_on(names[start : start + _NODES_AT_ONCE]).cards)
            await breath()
        text = query.get("q", "").strip()
        return [each for each in usage.views() if text in each.namespace]
