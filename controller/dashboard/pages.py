"""All pages: path, template, content. Called by `app` for whole pages and by `stream` for updates.

A page is identified by its path. Everything that came from the cluster (names of nodes, pods,
cards) is in the query, so that no name can lead to another address.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct

from controller.dashboard.cardpages import CardPages
from controller.dashboard.decisionpages import DecisionTable
from controller.dashboard.devicepages import DeviceTable, NodeTable
from controller.dashboard.gangpages import GangTable
from controller.dashboard.history import History
from controller.dashboard.pending import PendingTable
from controller.dashboard.podpages import ClaimTable, PodTable
from controller.dashboard.quotapages import UsageTable
from controller.dashboard.readings import Readings
from controller.dashboard.source import Source
from controller.dashboard.tables import Context, Query

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
    cards, pods = CardPages(source, history, readings), PodTable(source)
    nodes, devices = NodeTable(cards), DeviceTable(cards)
    claims, gangs, pending = ClaimTable(source), GangTable(source), PendingTable(source)
    decisions, usage = DecisionTable(source), UsageTable(cards)
    exports: dict[str, Export] = {
        "gangs": gangs.exported,
        "pods": pods.exported,
        "pending": pending.exported,
        "claims": claims.exported,
        "nodes": nodes.exported,
        "devices": devices.exported,
        "quota": usage.limits.exported,
        "usage": usage.exported,
    }
    found = {
        page.path: page
        for page in (
            Page("/", "overview.html", "Overview", "/", cards.overview, reads_cards=True),
            Page("/nodes", "nodes.html", "Nodes", "/nodes", nodes.context),
            Page("/node", "node.html", "Node", "/nodes", cards.node, reads_cards=True),
            Page("/devices", "devices.html", "Devices", "/devices", devices.context),
            Page("/device", "device.html", "Device", "/devices", cards.device, reads_cards=True),
            Page("/pods", "pods.html", "Pods", "/pods", pods.context),
            Page("/gangs", "gangs.html", "Gangs", "/gangs", gangs.context),
            Page("/claims", "claims.html", "Claims", "/claims", claims.context),
            Page("/pending", "pending.html", "Pending", "/pending", pending.context),
            Page("/decisions", "decisions.html", "Decisions", "/decisions", decisions.context),
            Page("/decision", "decision.html", "Decision", "/decisions", decisions.decision),
            Page("/quota", "quota.html", "Quota", "/quota", usage.context),
        )
    }
    return Site(found, exports)
