"""Metadata changed in the protobuf form of an object, as an API server sent it, and not one byte beside it."""

import pytest

from hami_dra.kube import metadata_put
from hami_dra.kube.protocol import Conflict, Unavailable

UID = "19fa4f18-aedd-48d2-a561-0b497feaecca"
HEAD = b"k8s\x00\n#\n\x12resource.k8s.io/v1\x12\rResourceClaim"
META = (
    b'\n\x01a\x12\x00\x1a\x07default"\x00*$'
    + UID.encode()
    + b"2\x03267"
    + b"8\x00B\x08\x08\xf9\xf9\x84\xd8\x06\x10\x00"
)
MANAGED = b"\x8a\x01\x11\n\x07unknown\x12\x06Update"
PARAMETERS = b'{"apiVersion": "x/v1", "kind": "K", "n": ["a < b",  {"z": 1}]}'
SPEC = b"\x12" + bytes([len(PARAMETERS) + 2]) + b"\n" + bytes([len(PARAMETERS)]) + PARAMETERS
TAIL = b'\x1a\x00"\x00'
GUARD = {"uid": UID, "resourceVersion": "267"}


def framed(metadata, rest=SPEC):
    """A document as the API server sends it; its messages are short enough for lengths of one or two bytes."""
    raw = b"\n" + length(metadata) + metadata + rest
    return HEAD + b"\x12" + length(raw) + raw + TAIL


def length(content):
    size = len(content)
    return bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])


def entry(number, key, value):
    content = b"\n" + length(key) + key + b"\x12" + length(value) + value
    return bytes([number << 3 | 2]) + length(content) + content


def finalizer(name):
    return b"\x72" + length(name) + name


def patched(metadata, **changes):
    return metadata_put.apply(framed(metadata), {"metadata": changes}, "patch it")


def test_annotations_and_finalizers_are_added_behind_what_is_there():
    changes = {"annotations": {"hami.io/quota-used": "here"}, "finalizers": ["a.b/c"]}
    expected = META + MANAGED + entry(12, b"hami.io/quota-used", b"here") + finalizer(b"a.b/c")
    assert patched(META + MANAGED, **GUARD, **changes) == framed(expected)


def test_they_are_taken_away_again():
    full = (
        META + entry(11, b"l", b"1") + entry(12, b"mine", b"x" * 200) + entry(12, b"yours", b"") + finalizer(b"a.b/c")
    )
    assert patched(full, annotations={"mine": None, "never": None}, finalizers=[]) == framed(
        META + entry(11, b"l", b"1") + entry(12, b"yours", b"")
    )
    assert patched(full, annotations=None, finalizers=None, labels={"l": "é"}) == framed(
        META + entry(11, b"l", "é".encode())
    )


def test_numbers_and_fixed_fields_are_kept():
    odd = b"\x38\xac\x02" + b"\xf9\x06" + bytes(8) + b"\xfd\x06" + bytes(4)
    assert patched(META + odd, labels={}) == framed(META + odd)


@pytest.mark.parametrize("guard", [{"uid": "another"}, {"resourceVersion": "266"}])
def test_a_guard_that_does_not_hold_is_a_conflict(guard):
    with pytest.raises(Conflict, match="patch it: metadata"):
        patched(META, **GUARD | guard, labels={})


@pytest.mark.parametrize(
    "document",
    [b"", b"{}", HEAD, framed(b"\n\x01a"), framed(META)[:-40], framed(META + b"\x0b"), framed(META + b"\x0a\xff")],
)
def test_what_no_api_server_sends_changes_nothing(document):
    with pytest.raises(Unavailable, match="cannot be read as protobuf"):
        metadata_put.apply(document, {"metadata": {"labels": {}}}, "patch it")


@pytest.mark.parametrize(
    "patch", [{"metadata": {"name": "b"}}, {"metadata": {}, "spec": {}}, {"status": {}}, [], {"metadata": None}]
)
def test_only_labels_annotations_and_finalizers_are_written_so(patch):
    assert not metadata_put.can_apply(patch)
