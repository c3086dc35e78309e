"""The initial events of a watch, which take the place of a list (WatchList, KEP-3157).

Called by `http`. Asked for it, an API server starts a watch with one ADDED event for each object
and then a bookmark that says that these were all. It need not hold a page of them in memory, nor do
we: objects are decoded as they arrive. Pure.
"""

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.decoding import read_added, read_event
from hami_dra.kube.protocol import Broken, Listing, WatchEvent

T = TypeVar("T", bound=Object)

INITIAL_EVENTS: Final = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
"""Without a resourceVersion: at least as new as a quorum read."""
_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the last initial event."""


class InitialEvents(Generic[T]):
    """Collects the objects of one watch.

    An object that changes meanwhile is there once, in its last state.
    """

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._items: dict[str, T] = {}
        self._broken: dict[str, Broken] = {}

    def feed(self, lines: bytes) -> tuple[Listing[T], Sequence[bytes]] | None:
        """Take whole lines of the watch.

        Returns None until the end of the initial events; then all objects, and the lines that
        follow. Raises the ClusterError that an ERROR event stands for.
        """
        added = read_added(self._kind, lines)
        if added is not None:
            for item, problem in added:
                self._put(item, problem)
            return None
        texts = [line for line in lines.split(b"\n") if line.strip()]
        for number, line in enumerate(texts, start=1):
            read = read_event(self._kind, line)
            if read.type != "BOOKMARK":
                self._take(read)
            elif read.object.metadata.annotations.get(_END) == "true":
                version = read.object.metadata.resource_version
                return Listing(tuple(self._items.values()), version, tuple(self._broken.values())), texts[number:]
        return None

    def _take(self, event: WatchEvent[T] | Broken) -> None:
        if isinstance(event, Broken) or event.type == "DELETED":
            key = event.object.key
            self._items.pop(key, None)
            self._broken.pop(key, None)
            if isinstance(event, Broken) and event.type != "DELETED":
                self._broken[key] = Broken("ADDED", event.object, event.problem)
        else:
            self._put(event.object, event.problem)

    def _put(self, item: T, problem: str) -> None:
        key = item.key
        self._items[key] = item
        if problem:
            self._broken[key] = Broken("ADDED", item, problem)
        elif self._broken:
            self._broken.pop(key, None)
