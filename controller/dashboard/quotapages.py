"""Content of the quota page: limits for devices, and what namespaces hold. HTML:
`templates/quota.html`.

Values only; see `cardpages`. One filter serves both tables; each has its own columns to sort by.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from controller.dashboard.cardpages import CardPages, Context, Query
from controller.dashboard.fleet import node_rows
from controller.dashboard.pacing import breath
from controller.dashboard.paging import page_slice
from controller.dashboard.source import Source
from controller.dashboard.tables import ordered
from controller.insight.overview import CardTable, NamespaceUsage, NamespaceView
from controller.scheduling.inventory import QuotaLine

ON_LEAF: Final = 100
MOST_LIMITS: Final = 200
"""Limits on the page; the export has all."""
_NODES_AT_ONCE: Final = 20
"""Nodes processed between two yields to the event loop, while all cards are read."""
_LIMITS: Final[Mapping[str, Callable[[QuotaLine], Any]]] = {
    "namespace": lambda line: line.namespace,
    "quota": lambda line: (line.quota, line.namespace),
    "limit": lambda line: (line.resource, line.namespace),
    "share": lambda line: line.used / line.hard if line.hard else float(line.used > 0),
}
_USAGE: Final[Mapping[str, Callable[[NamespaceView], Any]]] = {
    "namespace": lambda each: each.namespace,
    "vendor": lambda each: (each.vendor, each.namespace),
    "pods": lambda each: each.pods,
    "claims": lambda each: each.claims,
    "devices": lambda each: each.cards,
    "whole": lambda each: each.whole_cards,
    "memory": lambda each: each.memory,
}


class QuotaPages:
    def __init__(self, source: Source, cards: CardPages) -> None:
        self._source = source
        self._cards = cards
        self._table = CardTable(source.inventory)

    async def quota(self, query: Query) -> Context:
        limits, by_limit = await self._limits(query)
        usage, by_usage = await self._usage(query)
        return {
            "limits": limits[:MOST_LIMITS],
            "limits_left_out": max(len(limits) - MOST_LIMITS, 0),
            "leaf": page_slice(usage, query.get("leaf", ""), ON_LEAF),
            "asked": {"q": query.get("q", "").strip(), **by_limit, **by_usage},
        }

    async def exported_quota(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield the limits without pagination."""
        for line in (await self._limits(query))[0]:
            yield {
                "namespace": line.namespace,
                "resourceQuota": line.quota,
                "resource": line.resource,
                "used": line.used,
                "hard": line.hard,
                "unit": line.unit,
            }

    async def exported_usage(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        """Yield what namespaces hold without pagination."""
        for each in (await self._usage(query))[0]:
            yield {
                "namespace": each.namespace,
                "vendor": each.vendor,
                "pods": each.pods,
                "claims": each.claims,
                "devices": each.cards,
                "wholeDevices": each.whole_cards,
                "memoryBytes": each.memory,
                "cores": each.cores,
            }

    async def _limits(self, query: Query) -> tuple[list[QuotaLine], dict[str, str]]:
        text = query.get("q", "").strip()
        lines = self._source.inventory.quotas.lines(self._source.namespaces)
        return await ordered([line for line in lines if text in line.namespace], _LIMITS, query)

    async def _usage(self, query: Query) -> tuple[list[NamespaceView], dict[str, str]]:
        """Return what the namespaces hold.

        This reads all cards, so it yields to the event loop in between: decisions take precedence.
        """
        self._table.refresh()
        names = [row.name for row in node_rows(self._table) if row.held_cards]
        usage = NamespaceUsage()
        for start in range(0, len(names), _NODES_AT_ONCE):
            usage.add(self._cards.cards_on(names[start : start + _NODES_AT_ONCE]).cards)
            await breath()
        text = query.get("q", "").strip()
        return await ordered([each for each in usage.views() if text in each.namespace], _USAGE, query)
