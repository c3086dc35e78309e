"""A metadata patch applied to an object's protobuf form, which leaves its spec byte-identical.

Pure; called by `http`.

Why: the API server stores a claim's opaque parameters byte by byte, but every kind of patch passes
the object through JSON, which removes spaces and escapes `<`. If a claim was written with either
(as Python's json.dumps writes it), the server then considers the spec changed and refuses every
patch of its metadata, server-side apply included (seen on 1.36.4 and 1.37.1; patches of the status
are not affected). Only a PUT in protobuf keeps the bytes.

In: the body of a GET in protobuf and a merge patch that touches labels, annotations and finalizers
only (`can_apply`). Out: the body of the PUT. The object's own resourceVersion in it guards the
write.

Envelope: `k8s` and a zero byte, then runtime.Unknown
(k8s.io/apimachinery/pkg/runtime/generated.proto), whose `raw` is the object; an object's first
field is its ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hami_dra.kube.protocol import Body, Conflict, Unavailable

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\0"
_RAW: Final = 2
_METADATA: Final = 1
_UID: Final = 5
_RESOURCE_VERSION: Final = 6
_MAPS: Final = {"labels": 11, "annotations": 12}
_FINALIZERS: Final = 14
_KEY, _VALUE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_GUARDS: Final = {"uid": _UID, "resourceVersion": _RESOURCE_VERSION}

Field = tuple[int, bytes, bytes]
"""(number; content if length-delimited, else empty; the whole field as encoded)"""


def can_apply(patch: object) -> bool:
    """Return whether it is a merge patch of labels, annotations and finalizers only, guarded or not."""
    if not isinstance(patch, Mapping) or set(patch) != {"metadata"} or not isinstance(patch["metadata"], Mapping):
        return False
    return set(patch["metadata"]) <= {*_GUARDS, *_MAPS, "finalizers"}


def apply(document: bytes, patch: Body, what: str) -> bytes:
    """Return the document with that patch (`can_apply`) in its metadata.

    Raises Conflict if its guards do not hold, Unavailable if the document is not what an API server
    sends; `what` names the request.
    """
    wanted = patch["metadata"]
    try:
        envelope = list(_fields(document.removeprefix(_MAGIC)))
        body = list(_fields(_only(envelope, _RAW)))
        metadata = list(_fields(_only(body, _METADATA)))
        for name, number in _GUARDS.items():
            stored = _only(metadata, number).decode()
            if name in wanted and wanted[name] != stored:
                raise Conflict(f"{what}: metadata.{name} is {stored} by now, not {wanted[name]}")
        changed = _replaced(body, _METADATA, _patched(metadata, wanted))
    except ValueError as error:
        raise Unavailable(f"{what}: the answer cannot be read as protobuf: {error}") from None
    return _MAGIC + _replaced(envelope, _RAW, changed)


def _patched(metadata: list[Field], wanted: Mapping[str, Any]) -> bytes:
    for name, number in _MAPS.items():
        changes = wanted.get(name, {})
        stored = dict(_entry(content) for field, content, _ in metadata if field == number)
        merged = {} if changes is None else {**stored, **changes}
        entries = (
            _field(_KEY, key.encode()) + _field(_VALUE, value.encode())
            for key, value in merged.items()
            if value is not None
        )
        metadata = _with(metadata, number, entries)
    if "finalizers" in wanted:
        metadata = _with(metadata, _FINALIZERS, (name.encode() for name in wanted["finalizers"] or ()))
    return b"".join(whole for _, _, whole in metadata)


def _with(fields: list[Field], number: int, contents: Iterable[bytes]) -> list[Field]:
    kept = [field for field in fields if field[0] != number]
    return kept + [(number, content, _field(number, content)) for content in contents]


def _replaced(fields: list[Field], number: int, content: bytes) -> bytes:
    return b"".join(_field(number, content) if field == number else whole for field, _, whole in fields)


def _only(fields: list[Field], number: int) -> bytes:
    contents = [content for field, content, _ in fields if field == number]
    if len(contents) != 1:
        raise ValueError(f"field {number} is there {len(contents)} times instead of once")
    return contents[0]


def _entry(content: bytes) -> tuple[str, str]:
    """Return key and value of a map entry; an omitted part is empty."""
    parts = {number: part.decode() for number, part, _ in _fields(content)}
    return parts.get(_KEY, ""), parts.get(_VALUE, "")


def _fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of one message, in order. Raises ValueError.

    Format: https://protobuf.dev/programming-guides/encoding/
    """
    position = 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        content = b""
        if wire_type == _BYTES:
            length, position = _varint(data, position)
            content = data[position : position + length]
            position += length
        elif wire_type == _VARINT:
            _, position = _varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {wire_type}")
        if position > len(data):
            raise ValueError(f"field {number} is cut off")
        yield number, content, data[start:position]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is cut off")


def _field(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
