"""Responses to our own writes, kept so that the watch need not decode the same versions again.

Filled by `http.HttpCluster`, read by `http_watch`. Decoding and settling an object costs a tenth of
a millisecond, and most events about the objects we write are caused by our own writes. Objects are
immutable once read, so the event can share the one that was decoded from the response.
"""

import re
from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.protocol import EventType, WatchEvent

T = TypeVar("T", bound=Object)

_MOST: Final = 256
"""Largest number of responses kept. Most are used within milliseconds, those of unwatched kinds never."""
_VERSION: Final = re.compile(rb'"resourceVersion":"(\d+)"')


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Identity(msgspec.Struct):
    metadata: _Meta


class _Event(msgspec.Struct):
    type: EventType
    object: _Identity


class _Key(NamedTuple):
    """Identifies one version of a kind; resourceVersions are unique within a kind."""

    group: str
    version: str
    plural: str
    resource_version: str


_events: Final = msgspec.json.Decoder(_Event)


class OwnWrites:
    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, tuple[Object, str]] = OrderedDict()

    def keep(self, kind: Kind[Any], answer: Object, problem: str) -> None:
        """Keep the response to a write. `problem`: the part of it that could not be read."""
        self._kept[_key(kind, answer.metadata.resource_version)] = answer, problem
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def forget(self, kind: Kind[Any]) -> None:
        """Forget the responses of a kind. Called before a list: a restored etcd hands out versions again."""
        for key in [key for key in self._kept if (key.group, key.version, key.plural) == _key(kind, "")[:3]]:
            del self._kept[key]

    def event_of(self, kind: Kind[T], line: bytes) -> WatchEvent[T] | None:
        """Return the event of a watch line that shows a kept response, and forget the response."""
        if not self._kept or (found := _VERSION.search(line)) is None:
            return None
        kept = self._kept.pop(_key(kind, found[1].decode()), None)
        if kept is None:
            return None
        answer, problem = kept
        try:
            event = _events.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        shown, known = event.object.metadata, answer.metadata
        if (shown.uid, shown.resource_version) != (known.uid, known.resource_version):
            return None
        return WatchEvent(event.type, cast("T", answer), problem)


def _key(kind: Kind[Any], resource_version: str) -> _Key:
    return _Key(kind.group, kind.version, kind.plural, resource_version)
