"""Decodes an API server's bytes to Structs and errors: one path for get, list and watch. Pure.

Called by `http.HttpCluster`. Whatever bytes a tenant can store, only the errors named here are
raised, and every other object of the answer is read as if the bad one did not exist:

1. Decode everything at once. This is all that happens unless a client stores what Kubernetes' own
   clients never write.
2. If the parser gives up (depth, surrogates, invalid text), decode again after `sanitize`, which
   cuts only unused parts.
3. If an object then does not fit its Struct, decode one by one. Misfits become `Broken`, except
   claims, of which `salvage` keeps the allocation.

Every object read is then settled: unused annotations are dropped, unusable opaque parameters are
replaced (`hami_dra.api.opaque`). An object with an unreadable part is in the result, and also
listed as broken.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from hami_dra.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind
from hami_dra.api.meta import NO_ANNOTATIONS, Object, ObjectMeta
from hami_dra.api.oversized import reduce_metadata
from hami_dra.api.sanitize import sanitized
from hami_dra.api.weight import LIGHT
from hami_dra.kube.protocol import (
    AlreadyExists,
    Broken,
    ClusterError,
    Conflict,
    EventType,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Protected,
    Unavailable,
    WatchEvent,
)
from hami_dra.kube.salvage import identity, salvaged_claim

T = TypeVar("T", bound=Object)
Item = TypeVar("Item")

_MOST_TEXT: Final = 2_000
_OF_TENANTS: Final = frozenset(
    {POD.name, PERSISTENT_VOLUME_CLAIM.name, RESOURCE_CLAIM.name, RESOURCE_CLAIM_TEMPLATE.name}
)
_HTML: Final = "an HTML page instead of the answer of an API server: is a proxy or a login page in between?"
_TWO_BUDGETS: Final = "more than one PodDisruptionBudget"
"""In the only answer with code 500 that is no failure of the server."""
_LOG_IN: Final = "the API server does not accept the token or certificate, which may have expired; log in again"
_BY_CODE: Final[dict[int, type[ClusterError]]] = {
    400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 405: Invalid, 406: Invalid, 409: Conflict,
    410: Gone, 413: Invalid, 415: Invalid, 422: Invalid,
}  # fmt: skip


class SpecChanged(Invalid):
    """A patch would change an immutable spec, if only because the server writes the spec differently."""


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""
    reason: str = ""


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int = 0
    causes: tuple[_Cause, ...] = ()


class Status(msgspec.Struct):
    """metav1.Status, which the API server sends instead of an object."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    @property
    def budget_words(self) -> str:
        """Return the words of the disruption budget that refuses an eviction, or an empty text."""
        causes = self.details.causes if self.details else ()
        return next((cause.message or self.message for cause in causes if cause.reason == "DisruptionBudget"), "")


class _PageMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class Page(msgspec.Struct, Generic[Item]):
    """One page of a list. `continue_` is empty on the last one. `broken`: see `Listing`."""

    metadata: _PageMeta = msgspec.field(default_factory=_PageMeta)
    items: tuple[Item, ...] | None = None
    broken: tuple[Broken, ...] = ()


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Change(msgspec.Struct, Generic[Item]):
    type: str
    object: Item


class _Bookmark(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


_events: Final = msgspec.json.Decoder(_Event)
_raw_pages: Final = msgspec.json.Decoder(Page[msgspec.Raw])
_json_pages: Final = msgspec.json.Decoder(Page[dict[str, Any]])
_json_objects: Final = msgspec.json.Decoder(dict[str, Any])
_bookmarks: Final = msgspec.json.Decoder(_Bookmark)
_statuses: Final = msgspec.json.Decoder(Status)
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


@cache
def _decoder(kind: Kind[Any], around: Any = None) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a kind. `around`: the generic Struct that holds such objects."""
    return msgspec.json.Decoder(kind.type if around is None else around[kind.type])


def _decoded(decoder: msgspec.json.Decoder[Item], text: bytes | bytearray | msgspec.Raw) -> Item:
    """Decode a document.

    Raises msgspec.ValidationError if it is not of the type, another msgspec.DecodeError if it is
    not JSON.
    """
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except _UNDECODABLE:
        return _decoded_again(decoder, sanitized(bytes(text)))


def _decoded_json(decoder: msgspec.json.Decoder[Item], text: bytes | bytearray | msgspec.Raw) -> Item:
    """Decode a document of which every part is kept: nothing in it is too deep or large for Python."""
    return _decoded_again(decoder, sanitized(bytes(text), numbers=True))


def _decoded_again(decoder: msgspec.json.Decoder[Item], text: bytes) -> Item:
    try:
        return decoder.decode(text)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


# --- one object -----------------------------------------------------------------------------------


def read_object(kind: Kind[T], body: bytes | msgspec.Raw) -> tuple[T, str]:
    """Return the object, and what of it could not be read ("" for nothing).

    Raises msgspec.ValidationError if nothing of it fits its Struct, another msgspec.DecodeError if
    it is not JSON.
    """
    try:
        found = cast("T", _decoded(_decoder(kind), body))
    except msgspec.ValidationError as error:
        if kind.name != RESOURCE_CLAIM.name:
            raise
        found = cast("T", salvaged_claim(_decoded_json(_json_objects, body), str(error)))
    return found, settled(kind, found, len(memoryview(body)))


def settled(kind: Kind[T], found: T, length: int | None = None) -> str:
    """Drop unused parts, replace unusable ones, reduce what is too large. Returns what of the object
    is unreadable, or "". `length`: see `Kind.settled`.
    """
    _trim(kind, found)
    return kind.settled(found, length)


def _trim(kind: Kind[Any], found: Object) -> None:
    """Keep only the annotations in use, and of a tenant's object only the owner that controls it.
    An annotation that is too long is replaced with a marker.
    """
    meta = found.metadata
    if meta.owner_references and kind.reduce is not None:
        controllers = tuple([each for each in meta.owner_references if each.controller])
        force_setattr(meta, "owner_references", controllers)
    annotations = meta.annotations
    if annotations:
        # Here, because it imports all vendors: a program that reads no annotations starts without them.
        from hami_dra.vendors.annotations import kept_annotations

        annotations = kept_annotations(annotations, of_tenant=kind.name in _OF_TENANTS)
    force_setattr(meta, "annotations", annotations or NO_ANNOTATIONS)


def read_json(body: bytes) -> dict[str, Any]:
    """Return the whole object as JSON. Raises msgspec.DecodeError."""
    return _decoded_json(_json_objects, body)


def _broken(kind: Kind[Any], event_type: EventType, body: msgspec.Raw, problem: str) -> Broken:
    found = identity(_decoded_json(_json_objects, body))
    _trim(kind, found)
    if len(memoryview(body)) > kind.most_weight:
        reduce_metadata(found)
    return Broken(event_type, found, problem)


# --- lists ----------------------------------------------------------------------------------------


def read_page(kind: Kind[T], body: bytes) -> Page[T]:
    """Decode one page of a list. Raises msgspec.DecodeError if the answer is not a list."""
    try:
        found = cast("Page[T]", _decoded(_decoder(kind, Page), body))
    except msgspec.ValidationError:
        return _read_one_by_one(kind, _decoded(_raw_pages, body))
    broken = [Broken("ADDED", item, problem) for item in found.items or () if (problem := settled(kind, item))]
    return Page(found.metadata, found.items, tuple(broken)) if broken else found


def _read_one_by_one(kind: Kind[T], page: Page[msgspec.Raw]) -> Page[T]:
    items: list[T] = []
    broken: list[Broken] = []
    for raw in page.items or ():
        try:
            item, problem = read_object(kind, raw)
        except msgspec.ValidationError as error:
            broken.append(_broken(kind, "ADDED", raw, str(error)))
        else:
            items.append(item)
            if problem:
                broken.append(Broken("ADDED", item, problem))
    return Page(page.metadata, tuple(items), tuple(broken))


def read_json_page(body: bytes) -> Page[dict[str, Any]]:
    """Return one page of unmodified items, except for what `sanitize` cuts. Raises msgspec.DecodeError."""
    return _decoded_json(_json_pages, body)


# --- watches --------------------------------------------------------------------------------------


def read_event(kind: Kind[T], line: bytes | bytearray) -> WatchEvent[T] | Broken:
    """Decode one line of a watch. Raises the ClusterError that an ERROR event stands for."""
    try:
        event = _decoded(_events, line)
        if event.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", cast("T", Object(metadata=_decoded(_bookmarks, event.object).metadata)))
        if event.type != "ERROR":
            return _read_change(kind, cast("EventType", event.type), event.object)
    except msgspec.DecodeError as error:
        raise Unavailable(f"watch {kind.plural}: the server sent something that is not an event: {error}") from None
    status = read_status(bytes(event.object))
    raise error_of(status.code, status, f"watch {kind.plural}")


def read_added(kind: Kind[T], lines: bytes) -> list[tuple[T, str]] | None:
    """Decode lines of a watch together, which costs less than `read_event` for each.

    Returns objects as `read_object` does, or None unless all lines are readable and ADDED: then
    they are to be read one by one.
    """
    try:
        changes = cast("list[_Change[T]]", _decoder(kind, _Change).decode_lines(lines))
    except _UNDECODABLE:
        return None
    if any(change.type != "ADDED" for change in changes):
        return None
    if not has_long_line(lines, LIGHT * kind.most_weight):
        return [(change.object, settled(kind, _unnamed(change.object), 0)) for change in changes]
    lengths = [len(line) for line in lines.split(b"\n") if line.strip()]
    return [
        (change.object, settled(kind, _unnamed(change.object), length))
        for change, length in zip(changes, lengths, strict=True)
    ]


def has_long_line(lines: bytes, most: int) -> bool:
    r"""Return whether a line is longer than `most`: whether there are more bytes between two line breaks.

    Reads one line of each `most` bytes, so it costs next to nothing.

    >>> has_long_line(b"abc\nabc\n", 3), has_long_line(b"abc\nabcd\n", 3)
    (False, True)
    """
    start = 0
    while len(lines) - start > most:
        end = lines.rfind(b"\n", start, start + most + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _unnamed(found: T) -> T:
    """Drop kind and API version, which an object has in a watch, and not in a list."""
    force_setattr(found, "kind", "")
    force_setattr(found, "api_version", "")
    return found


def _read_change(kind: Kind[T], event_type: EventType, body: msgspec.Raw) -> WatchEvent[T] | Broken:
    try:
        found, problem = read_object(kind, body)
    except msgspec.ValidationError as error:
        return _broken(kind, event_type, body, str(error))
    return WatchEvent(event_type, _unnamed(found), problem)


# --- errors ---------------------------------------------------------------------------------------


def read_status(body: bytes) -> Status:
    """Return the Status; of anything else the first line becomes the message of one."""
    try:
        return _decoded(_statuses, body)
    except msgspec.DecodeError:
        text = body[:_MOST_TEXT].decode(errors="replace").strip()
        return Status(message=_HTML if text.startswith("<") else text.partition("\n")[0])


def error_of(code: int, status: Status, what: str) -> ClusterError:
    """Return the error for an HTTP status code; unexpected codes become Unavailable.

    `what` names verb and object; the server's own words follow.
    """
    text = f"{what}: {status.message[:_MOST_TEXT] or f'HTTP {code}'}"
    if status.message == _HTML:
        text = f"{what}: HTTP {code}, {_HTML}"
    elif code == 401:
        text += f": {_LOG_IN}"
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(text)
    if status.budget_words:
        return Protected(f"{text} {status.budget_words[:_MOST_TEXT]}")
    if code == 500 and _TWO_BUDGETS in status.message:
        return Invalid(text)
    causes = status.details.causes if code == 422 and status.details else ()
    if any(cause.field == "metadata.uid" for cause in causes):
        # A patch for the UID of an earlier object of this name: not a bad patch, a late one.
        return Conflict(text)
    if any(cause.field == "spec" and "immutable" in cause.message for cause in causes):
        return SpecChanged(text)
    return _BY_CODE.get(code, Unavailable)(text)


def whole_lines(pending: bytearray, chunk: bytes) -> bytes:
    r"""Return what `pending` and `chunk` hold up to the last line break; the rest stays in
    `pending`.

    >>> pending = bytearray(b"a")
    >>> whole_lines(pending, b"b\nc\nd"), bytes(pending)
    (b'ab\nc\n', b'd')
    """
    end = chunk.rfind(b"\n") + 1
    if not end:
        pending += chunk
        return b""
    lines = bytes(pending) + chunk[:end]
    pending[:] = chunk[end:]
    return lines


def split_lines(pending: bytearray, chunk: bytes) -> Sequence[bytes]:
    """Return the lines that `chunk` completes; the rest stays in `pending`.

    Takes linear time however the lines are split.
    """
    first, *rest = chunk.split(b"\n")
    pending += first
    if not rest:
        return ()
    lines = [bytes(pending), *rest[:-1]]
    pending[:] = rest[-1]
    return [line for line in lines if line.strip()]
