"""From the bytes an API server sends to Structs and errors. Pure; called by `http.HttpCluster`."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.cluster.protocol import (
    AlreadyExists,
    Broken,
    ClusterError,
    Conflict,
    EventType,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unavailable,
    WatchEvent,
)

T = TypeVar("T", bound=Object)
Item = TypeVar("Item")

_MOST_TEXT: Final = 2_000
_BY_CODE: Final[dict[int, type[ClusterError]]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    406: Invalid,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


class SpecChanged(Invalid):
    """A patch would change a spec that may not change, be it by no more than how the server writes it."""


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int = 0
    causes: tuple[_Cause, ...] = ()


class Status(msgspec.Struct):
    """What the API server sends instead of an object: metav1.Status."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _PageMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class Page(msgspec.Struct, Generic[Item]):
    """One page of a list. `continue_` is empty on the last one."""

    metadata: _PageMeta = msgspec.field(default_factory=_PageMeta)
    items: tuple[Item, ...] | None = None
    broken: tuple[Broken, ...] = ()


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_events: Final = msgspec.json.Decoder(_Event)
_raw_pages: Final = msgspec.json.Decoder(Page[msgspec.Raw])
_json_pages: Final = msgspec.json.Decoder(Page[dict[str, Any]])
_objects: Final = msgspec.json.Decoder(Object)
_statuses: Final = msgspec.json.Decoder(Status)


@cache
def _decoder(kind: Kind[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind.type)


@cache
def _page_decoder(kind: Kind[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Page[kind.type])  # type: ignore[name-defined]  # a type that is known at run time only


def read_object(kind: Kind[T], body: bytes) -> T:
    """Raises msgspec.ValidationError when it does not fit the Struct, DecodeError when it is no JSON."""
    found = cast("T", _decoder(kind).decode(body))
    if kind.settle is not None:
        kind.settle(found)
    return found


def read_page(kind: Kind[T], body: bytes) -> Page[T]:
    """All at once where possible; where one object does not fit, one by one, and the misfits are `broken`."""
    try:
        found = cast("Page[T]", _page_decoder(kind).decode(body))
    except msgspec.ValidationError:
        page = _raw_pages.decode(body)
    else:
        if kind.settle is not None:
            for item in found.items or ():
                kind.settle(item)
        return found
    items: list[T] = []
    broken: list[Broken] = []
    for raw in page.items or ():
        try:
            items.append(read_object(kind, bytes(raw)))
        except msgspec.ValidationError as error:
            broken.append(Broken("ADDED", _objects.decode(raw), str(error)))
    return Page(page.metadata, tuple(items), tuple(broken))


def read_json_page(body: bytes) -> Page[dict[str, Any]]:
    """Its items as they are. Raises msgspec.DecodeError."""
    return _json_pages.decode(body)


def read_event(kind: Kind[T], line: bytes | bytearray) -> WatchEvent[T] | Broken:
    """One line of a watch. Raises the ClusterError that an ERROR event stands for."""
    try:
        event = _events.decode(line)
    except msgspec.DecodeError as error:
        raise Unavailable(f"watch {kind.plural}: the server sent something that is no event: {error}") from None
    if event.type == "ERROR":
        status = read_status(bytes(event.object))
        raise error_of(status.code, status, f"watch {kind.plural}")
    if event.type == "BOOKMARK":
        return WatchEvent("BOOKMARK", cast("T", _objects.decode(event.object)))
    event_type = cast("EventType", event.type)
    try:
        return WatchEvent(event_type, read_object(kind, bytes(event.object)))
    except msgspec.ValidationError as error:
        return Broken(event_type, _objects.decode(event.object), str(error))


def read_status(body: bytes) -> Status:
    """Anything that is not a Status (a proxy's HTML, say) becomes its message."""
    try:
        return _statuses.decode(body)
    except msgspec.DecodeError:
        return Status(message=body[:_MOST_TEXT].decode(errors="replace").strip())


def error_of(code: int, status: Status, what: str) -> ClusterError:
    """`what` names verb and object; the server's own words follow. Codes nobody planned for are Unavailable."""
    text = f"{what}: {status.message[:_MOST_TEXT] or f'HTTP {code}'}"
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(text)
    causes = status.details.causes if code == 422 and status.details else ()
    if any(cause.field == "metadata.uid" for cause in causes):
        # a patch that names the uid of an earlier object of that name: not a bad patch, a late one
        return Conflict(text)
    if any(cause.field == "spec" and "immutable" in cause.message for cause in causes):
        return SpecChanged(text)
    return _BY_CODE.get(code, Unavailable)(text)


def split_lines(pending: bytearray, chunk: bytes) -> Sequence[bytes]:
    """The lines that `chunk` completes; the rest stays in `pending`. Linear however a line is cut."""
    first, *rest = chunk.split(b"\n")
    pending += first
    if not rest:
        return ()
    lines = [bytes(pending), *rest[:-1]]
    pending[:] = rest[-1]
    return [line for line in lines if line.strip()]
