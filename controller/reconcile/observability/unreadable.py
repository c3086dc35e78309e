"""Events on tenants' objects that cannot be read completely, so that their owners learn of it.

Created by the term; subscribed to every feed while this process leads. Log line and metric are
elsewhere: every replica has those (`informers`, `collectors.running`).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from controller.reconcile.runtime import Context, messages
from hami_dra.api.kinds import POD, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from hami_dra.kube.protocol import Broken

_OF_TENANTS: Final = frozenset({POD.name, RESOURCE_CLAIM.name, RESOURCE_CLAIM_TEMPLATE.name})


class UnreadableObjects:
    def __init__(self, context: Context) -> None:
        self._informers = context.informers
        self._events = context.events

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report each version of such an object within the block, existing ones first."""
        with ExitStack() as ends:
            for feed in self._informers.feeds():
                for broken in tuple(feed.reflector.unreadable.values()):
                    self._report(feed.kind, broken)
                ends.callback(feed.subscribe_unreadable(self._report))
            yield

    def _report(self, kind: Kind[Any], broken: Broken) -> None:
        if kind.name in _OF_TENANTS:
            note = f"hami-dra cannot read this {kind.name}: {broken.problem}"
            self._events.report(kind, broken.object, messages.warning(messages.UNREADABLE, note), "Read")
