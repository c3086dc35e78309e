"""What each set of users sees: pages, exports and the broker of their updates, by namespaces.

One `UserView` for users who may view everything, and one for each set of namespaces in view.
Used by `app`.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from controller.dashboard.pages import Site
from controller.dashboard.pending import pending_count
from controller.dashboard.source import Source
from controller.dashboard.stream import EventBroker

MOST_VIEWS: Final = 32
"""Sets of namespaces that are kept; those with an open page are kept in any case."""


class UserView(Struct, frozen=True):
    namespaces: frozenset[str] | None
    """None: all."""
    source: Source
    site: Site
    broker: EventBroker


class UserViews:
    """`site_of`: returns pages and exports on the data of a source. `interval`: see `EventBroker`."""

    def __init__(self, source: Source, site_of: Callable[[Source], Site], interval: float) -> None:
        self._source = source
        self._site_of = site_of
        self._interval = interval
        self._whole = self._make(None)
        self._views: OrderedDict[frozenset[str], UserView] = OrderedDict()

    def of(self, namespaces: frozenset[str] | None) -> UserView:
        if namespaces is None:
            return self._whole
        view = self._views.get(namespaces)
        if view is None:
            view = self._views[namespaces] = self._make(namespaces)
            idle = [key for key, each in self._views.items() if not each.broker.streams and key != namespaces]
            for key in idle[: max(len(self._views) - MOST_VIEWS, 0)]:
                del self._views[key]
        self._views.move_to_end(namespaces)
        return view

    def changed(self) -> None:
        for view in (self._whole, *self._views.values()):
            view.broker.changed()

    def _make(self, namespaces: frozenset[str] | None) -> UserView:
        source = self._source if namespaces is None else self._source.within(namespaces)
        site = self._site_of(source)
        broker = EventBroker(site.pages, lambda: pending_count(source)[0], interval=self._interval)
        return UserView(namespaces, source, site, broker)
