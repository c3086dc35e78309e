"""The answers to our own writes, kept for the watch, which shows the same versions once more.

Filled by `http.HttpCluster`, read by `http_watch`. Decoding and settling an object costs a tenth of a millisecond, and most
events about what we write are about our own writes. An object is never changed once it was read, so
the event can show the one that the answer was decoded to.
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
"""Answers kept. Most are taken within milliseconds; those of kinds that nobody watches never are."""
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
    """Names one version of an object, but for the object."""

    group: str
    version: str
    plural: str
    resource_version: str


_events: Final = msgspec.json.Decoder(_Event)


class OwnWrites:
    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, tuple[Object, str]] = OrderedDict()

    def keep(self, kind: Kind[Any], answer: Object, problem: str) -> None:
        """Keep the answer to a write. `problem`: what of it could not be read."""
        self._kept[_key(kind, answer.metadata.resource_version)] = answer, problem
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def forget(self, kind: Kind[Any]) -> None:
        """Before a list: it may be that of an etcd that was set back, which gives versions out once more."""
        for key in [key for key in self._kept if (key.group, key.version, key.plural) == _key(kind, "")[:3]]:
            del self._kept[key]

    def event_of(self, kind: Kind[T], line: bytes) -> WatchEvent[T] | None:
        """Return the event on a line of a watch if it shows an answer; that is forgotten."""
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
