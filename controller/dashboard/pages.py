"""All pages: path, template, content. Called by `app` for whole pages and by `stream` for updates.

A page is identified by its path. Everything that came from the cluster (names of nodes, pods,
cards) is in the query, so that no name can lead to another address.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from controller.dashboard.cardpages import CardPages, CardsTable, NoSuchThing
from controller.dashboard.devicepages import DeviceTable, NodeTable
from controller.dashboard.fleet import node_rows
from controller.dashboard.gangpages import GangTable
from controller.dashboard.history import History
from controller.dashboard.pacing import breath
from controller.dashboard.pending import PendingTable
from controller.dashboard.podpages import ClaimTable, PodTable
from controller.dashboard.readings import Readings
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, PageTable, Query
from controller.inventory import QuotaLine
from controller.views.columns import Column, Columns
from controller.views.explanation import Explanation, NodeExplanation
from controller.views.overview import NamespaceUsage, NamespaceView
from controller.views.shared_tables import NAMESPACES, QUOTAS

MOST_DECISIONS: Final = 1_000
_COLUMNS: Final[Columns[Explanation]] = (
    Column("", sort=lambda _: 0),  # newest first, as the log has them
    Column("pod", "Pod", lambda decision: decision.pod),
    Column("when", "Decided", lambda decision: decision.at),
    Column("outcome", "Outcome", lambda decision: (decision.outcome, decision.pod)),
    Column("node", "Node", lambda decision: (decision.node, decision.pod)),
    Column("reason", "Reason"),
)


class DecisionTable(PageTable[Explanation]):
    columns = _COLUMNS
    asks = ("q", "outcome")

    async def find(self, query: Query) -> list[Explanation]:
        text, outcome = query.get("q", "").strip(), query.get("outcome", "")
        return [
            each
            for each in self._source.decisions.latest(MOST_DECISIONS)
            if text in each.pod and outcome in ("", each.outcome)
        ]

    def decision(self, query: Query) -> Context:
        """Return what the page of one decision shows. Raises NoSuchThing."""
        key, claim = query.get("pod", ""), query.get("claim", "")
        decision = self._source.decisions.of_claim(claim) if claim else self._source.decisions.of_pod(key)
        if decision is None:
            raise NoSuchThing(claim or key)
        pod = self._source.pod(decision.pod)
        return {
            "decision": decision,
            "may_simulate": self._source.namespaces is None,
            "pod": pod if pod is not None and pod.metadata.uid == decision.uid else None,
            "best": _best(decision),
            "fitting": [node for node in decision.nodes if node.fits],
            "unfit": alike(node for node in decision.nodes if not node.fits),
        }


def alike(nodes: Iterable[NodeExplanation]) -> list[list[NodeExplanation]]:
    """Return the nodes by what they are refused for, in the order of the first of each."""
    found: dict[object, list[NodeExplanation]] = {}
    for node in nodes:
        found.setdefault((*sorted(node.reasons.items()), node.text.replace(node.node, "*")), []).append(node)
    return list(found.values())


def _best(explanation: Explanation) -> float:
    """Return the scale of the bars."""
    return max((sum(abs(term.value) for term in node.terms) for node in explanation.nodes), default=0.0)


MOST_LIMITS: Final = 200
"""Limits on the page; the export has all."""
_NODES_AT_ONCE: Final = 20
"""Nodes processed between two yields to the event loop, while all cards are read."""


class LimitTable(PageTable[QuotaLine]):
    columns = QUOTAS

    async def find(self, query: Query) -> list[QuotaLine]:
        text = query.get("q", "").strip()
        return [
            line
            for line in self._source.inventory.quotas.lines(self._source.namespaces, guarantees=True)
            if text in line.namespace
        ]


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


Export = Callable[[Query], AsyncIterator[Mapping[str, object]]]
Read = Callable[[Query], Context | Awaitable[Context]]


class Page(Struct, frozen=True):
    path: str
    template: str
    title: str
    """A key of the message catalogue."""
    section: str
    """Path of the menu entry that it belongs to."""
    read: Read
    reads_cards: bool = False
    """It shows readings of cards."""

    async def context(self, query: Query) -> Context:
        """Return the values that the template needs. Raises NoSuchThing."""
        found = self.read(query)
        return await found if inspect.isawaitable(found) else found


MENU: Final = (
    ("/", "Overview", "o"),
    ("/nodes", "Nodes", "n"),
    ("/devices", "Devices", "v"),
    ("/pods", "Pods", "p"),
    ("/gangs", "Gangs", "a"),
    ("/claims", "Claims", "c"),
    ("/pending", "Pending", "w"),
    ("/decisions", "Decisions", "d"),
    ("/quota", "Quota", "q"),
    ("/whatif", "What if", "i"),
)
"""Path, title, and the key that goes there after `g`."""


class Site(Struct, frozen=True):
    pages: Mapping[str, Page]
    """All live pages by path. `/whatif` is not among them: it is not live."""
    exports: Mapping[str, Export]
    """Tables by name."""


def site(source: Source, history: History, readings: Readings) -> Site:
    cards, decisions = CardPages(source, history, readings), DecisionTable(source)
    usage = UsageTable(cards)
    tables: dict[str, PageTable[Any]] = {
        "nodes": NodeTable(cards),
        "devices": DeviceTable(cards),
        "pods": PodTable(source),
        "gangs": GangTable(source),
        "claims": ClaimTable(source),
        "pending": PendingTable(source),
    }
    exported = {**tables, "quota": usage.limits, "usage": usage}
    pages = (
        Page("/", "overview.html", "Overview", "/", cards.overview, reads_cards=True),
        Page("/node", "node.html", "Node", "/nodes", cards.node, reads_cards=True),
        Page("/device", "device.html", "Device", "/devices", cards.device, reads_cards=True),
        Page("/decisions", "decisions.html", "Decisions", "/decisions", decisions.context),
        Page("/decision", "decision.html", "Decision", "/decisions", decisions.decision),
        Page("/quota", "quota.html", "Quota", "/quota", usage.context),
        *(Page(f"/{name}", f"{name}.html", name.title(), f"/{name}", table.context) for name, table in tables.items()),
    )
    return Site({page.path: page for page in pages}, {name: table.exported for name, table in exported.items()})
