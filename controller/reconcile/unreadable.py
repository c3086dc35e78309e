"""Events on the tenants' objects of which something cannot be read, so that their authors learn why nothing comes of them.

Made by the term; subscribed to every feed while this process leads. The log line and the metric are not its business: every
replica has those (`world`, `collectors.running`).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from controller.reconcile import messages
from controller.reconcile.context import Context
from hami_dra.api.kinds import POD, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from hami_dra.cluster.protocol import Broken

_OF_TENANTS: Final = frozenset({POD.name, RESOURCE_CLAIM.name, RESOURCE_CLAIM_TEMPLATE.name})


class UnreadableObjects:
    def __init__(self, context: Context) -> None:
        self._world = context.world
        self._events = context.events

    @contextmanager
    def told(self) -> Iterator[None]:
        """While this is open each version of such an object gets an event; those that are there already first."""
        with ExitStack() as ends:
            for feed in self._world.feeds():
                for broken in tuple(feed.reflector.unreadable.values()):
                    self._tell(feed.kind, broken)
                ends.callback(feed.subscribe_unreadable(self._tell))
            yield

    def _tell(self, kind: Kind[Any], broken: Broken) -> None:
        if kind.name in _OF_TENANTS:
            note = f"hami-dra cannot read this {kind.name}: {broken.problem}"
            self._events.tell(kind, broken.object, messages.warning(messages.UNREADABLE, note), "Read")
