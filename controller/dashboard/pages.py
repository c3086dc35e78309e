"""All pages: path, template, content. Called by `app` for whole pages and by `stream` for updates.

A page is identified by its path. Everything that came from the cluster (names of nodes, pods,
cards) is in the query, so that no name can lead to another address.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct

from controller.dashboard.cardpages import CardPages, Context, Query
from controller.dashboard.devicepages import DevicePages
from controller.dashboard.gangpages import GangPages
from controller.dashboard.history import History
from controller.dashboard.podpages import PodPages
from controller.dashboard.quotapages import QuotaPages
from controller.dashboard.readings import Readings
from controller.dashboard.source import Source

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
    ("/", "Overview"),
    ("/nodes", "Nodes"),
    ("/devices", "Devices"),
    ("/pods", "Pods"),
    ("/gangs", "Gangs"),
    ("/claims", "Claims"),
    ("/pending", "Pending"),
    ("/decisions", "Decisions"),
    ("/quota", "Quota"),
    ("/whatif", "What if"),
)


MENU_KEYS: Final = {
    "/": "o",
    "/nodes": "n",
    "/devices": "v",
    "/pods": "p",
    "/gangs": "a",
    "/claims": "c",
    "/pending": "w",
    "/decisions": "d",
    "/quota": "q",
    "/whatif": "i",
}
"""The key that goes there after `g`."""


class Site(Struct, frozen=True):
    pages: Mapping[str, Page]
    """All live pages by path. `/whatif` is not among them: it is not live."""
    exports: Mapping[str, Export]
    """Tables by name."""


def site(source: Source, history: History, readings: Readings) -> Site:
    cards, pods = CardPages(source, history, readings), PodPages(source)
    devices, quotas = DevicePages(source, cards), QuotaPages(source, cards)
    gangs = GangPages(source)
    exports: dict[str, Export] = {
        "gangs": gangs.exported_gangs,
        "pods": pods.exported_pods,
        "pending": pods.exported_pending,
        "claims": pods.exported_claims,
        "nodes": cards.exported_nodes,
        "devices": devices.exported_devices,
        "quota": quotas.exported_quota,
        "usage": quotas.exported_usage,
    }
    found = {
        page.path: page
        for page in (
            Page("/", "overview.html", "Overview", "/", cards.overview, reads_cards=True),
            Page("/nodes", "nodes.html", "Nodes", "/nodes", cards.nodes),
            Page("/node", "node.html", "Node", "/nodes", cards.node, reads_cards=True),
            Page("/devices", "devices.html", "Devices", "/devices", devices.devices),
            Page("/device", "device.html", "Device", "/devices", cards.device, reads_cards=True),
            Page("/pods", "pods.html", "Pods", "/pods", pods.pods),
            Page("/gangs", "gangs.html", "Gangs", "/gangs", gangs.gangs),
            Page("/claims", "claims.html", "Claims", "/claims", pods.claims),
            Page("/pending", "pending.html", "Pending", "/pending", pods.pending),
            Page("/decisions", "decisions.html", "Decisions", "/decisions", pods.decisions),
            Page("/decision", "decision.html", "Decision", "/decisions", pods.decision),
            Page("/quota", "quota.html", "Quota", "/quota", quotas.quota),
        )
    }
    return Site(found, exports)
