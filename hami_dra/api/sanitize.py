r"""Make JSON text readable that Kubernetes stores but a parser of Python refuses.

Pure, iterative, in linear time. Called by `hami_dra.kube` for answers of an API server and for
files, and by `hami_dra.api.opaque`. The API server keeps free-form parts of an object
(`managedFields`, opaque parameters) as they were sent, and Go's reader accepts more than msgspec
does: 10,000 levels of nesting (msgspec raises RecursionError at a depth that depends on the
interpreter and on the caller's stack), lone surrogates (`"\ud800"`), bytes that are not UTF-8, and
numbers of any length.

Nothing that this project reads is nested that deeply or that long, so the changes of `sanitized`
never lose anything needed:

    {"a":[[[...10,000 levels...]]]}   a value below level 100 becomes null
    "\ud800", b"\xff"                become U+FFFD, as Go itself writes them
    1e400, 20 digits and more         become strings: "1e400"

Text that is not JSON in the first place stays so, and the parser refuses it afterwards.
"""

import re
from collections.abc import Iterator
from typing import Final

MOST_LEVELS: Final = 100
"""Nesting that every supported interpreter decodes on any stack of this program. An API object needs about 15."""
_CHUNK: Final = 2**18
_STRUCTURE: Final = b'"{}[]'
_ALL_BUT_STRUCTURE: Final = bytes(set(range(256)) - set(_STRUCTURE))
_IS_STRUCTURE: Final = bytes(byte in _STRUCTURE for byte in range(256))
_QUOTE: Final = ord('"')
_OPENING_BIT: Final = 0b10
"""Set in { and [, not set in } and ]."""

_MAY_BE_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair: one character
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|\\.",
    re.DOTALL,
)
_REPLACEMENT: Final = rb"\ufffd"
_LARGE_NUMBER: Final = re.compile(rb"(?<=[:,\[\s])-?(?:[0-9]{20,}|[0-9.]++[eE][+-]?[0-9]{3,})[0-9.eE+-]*+(?=[,\]}\s])")
"""20 digits, or an exponent of three; matches inside a string, too, between such characters."""


def sanitized(text: bytes, *, numbers: bool = False) -> bytes:
    """Return the same JSON document in a form that both msgspec and `json` read; see the module.

    Returns `text` itself if it is readable already. `numbers`: convert large numbers, too. A parser
    that skips unknown fields accepts them, one that keeps all fields does not. Costs about 4 ns a
    byte; with numbers 20.
    """
    shallow = _shallow(_as_unicode(text))
    return _without_large_numbers(shallow) if numbers else shallow


def is_deeper(text: bytes, levels: int) -> bool:
    """Return whether objects and arrays are nested more than `levels` deep."""
    return next(_regions_below(text, levels), None) is not None


def is_unicode(text: bytes) -> bool:
    """Return whether the text is UTF-8 without lone surrogates, neither as bytes nor as escapes."""
    return _as_unicode(text) is text


# --- characters -----------------------------------------------------------------------------------


def _as_unicode(text: bytes) -> bytes:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        text = str(text, "utf-8", "replace").encode()
    if _MAY_BE_SURROGATE.search(text) is None:
        return text
    found = _ESCAPE.sub(lambda escape: _REPLACEMENT if escape[1] else escape[0], text)
    return text if found == text else found


# --- nesting --------------------------------------------------------------------------------------


def _shallow(text: bytes) -> bytes:
    """Replace everything nested below `MOST_LEVELS` with null."""
    kept = 0
    pieces: list[bytes] = []
    for start, end in _regions_below(text, MOST_LEVELS):
        pieces += (text[kept:start], b"null")
        kept = end
    return b"".join((*pieces, text[kept:])) if pieces else text


def _regions_below(text: bytes, levels: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each object or array at depth `levels`, in order: text[start:end] is
    all of it.

    Processes one chunk at a time, on columns: first the quotes and brackets of the chunk, then the
    depth after each bracket outside strings. Worked example for `levels` 1 and {"a":[1],"]":{}}:
    brackets { [ ] { } } at 0, 5, 7, 13, 14, 15 (the one at 10 is inside quotes) give depths 1 2 1 2
    1 0, so the regions are (5, 8) and (13, 15).
    """
    if text.count(b"{") + text.count(b"[") <= levels:
        return
    import numpy as np  # 0.1 s, and commands that read no large API object do without

    is_structure = np.frombuffer(_IS_STRUCTURE, dtype=np.bool_)
    plain = _without_escapes(text)
    depth = quotes = 0
    start = -1
    for offset in range(0, len(plain), _CHUNK):
        chunk = plain[offset : offset + _CHUNK]
        structure = np.frombuffer(chunk.translate(None, _ALL_BUT_STRUCTURE), dtype=np.uint8)
        if not len(structure):
            continue
        is_quote = structure == _QUOTE
        parity = np.cumsum(is_quote, dtype=np.uint8)  # wraps around at 256, which is even
        outside = ~is_quote & ((parity & 1) == quotes)
        quotes ^= int(parity[-1]) & 1
        opens = (structure[outside] & _OPENING_BIT) != 0
        if not len(opens):
            continue
        depths = depth + np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32)
        depth = int(depths[-1])
        if start < 0 and depths.max() <= levels:
            continue
        edges = np.flatnonzero((opens & (depths == levels + 1)) | (~opens & (depths == levels)))
        places = np.flatnonzero(is_structure[np.frombuffer(chunk, dtype=np.uint8)])[outside][edges]
        for place, is_start in zip(places.tolist(), opens[edges].tolist(), strict=True):
            if is_start:
                start = offset + place
            elif start >= 0:
                yield start, offset + place + 1
                start = -1


def _without_escapes(text: bytes) -> bytes:
    """Return a text of the same length in which every quote starts or ends a string."""
    # An escaped backslash escapes nothing, so it is replaced first.
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text


# --- numbers --------------------------------------------------------------------------------------


def _without_large_numbers(text: bytes) -> bytes:
    """Convert numbers that fit neither 64 bits nor a double to strings."""
    found = [each for each in _LARGE_NUMBER.finditer(text) if not _is_double(each[0])]
    if not found:
        return text
    plain = _without_escapes(text)
    kept = counted = quotes = 0
    pieces: list[bytes] = []
    for number in found:
        quotes += plain.count(b'"', counted, number.start())
        counted = number.start()
        if quotes % 2 == 0:
            pieces += (text[kept : number.start()], b'"', number[0], b'"')
            kept = number.end()
    return b"".join((*pieces, text[kept:]))


def _is_double(number: bytes) -> bool:
    """Return whether a double holds the number; a plain integer of that length never counts."""
    if number.lstrip(b"-").isdigit():
        return False
    try:
        return abs(float(number)) != float("inf")
    except ValueError:
        return True  # not a number at all: the parser will report it
