"""Reads one HTTP/1.1 answer from the bytes of a connection.

Called by `connections`. Pure: no I/O, and linear in what is fed. The body may have a length, come in
chunks, or last until the connection ends.
"""

import errno
import re
from typing import Final, NamedTuple

_MOST_HEAD: Final = 64 << 10
"""Bytes of status line and headers; the line between two chunks has at most as many."""
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})[^\r\n]*\r\n")
_HEADERS: Final = re.compile(
    rb"(?i)\r\n(content-length|transfer-encoding|connection|retry-after):[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)"
)
_CHUNK: Final = re.compile(rb"\r\n([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
"""Size of a chunk, after the end of the one before it."""
_TRAILERS: Final = re.compile(rb"(?:[^\r\n]+\r\n)*\r\n")
_WITHOUT_BODY: Final = frozenset({204, 304})
_UNKNOWN: Final = -1


class EndedEarly(ConnectionError):
    """The connection ended in the middle of an answer."""


class NotHttp(ConnectionError):
    """What was sent is no HTTP answer."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    retry_after: str
    """The header; empty if there is none."""
    is_last: bool
    """Whether the connection cannot be used again."""


class AnswerReader:
    """Feed it until it returns the answer. Raises NotHttp."""

    def __init__(self) -> None:
        self._unread = b""
        self._status = 0
        self._retry_after = ""
        self._is_last = False
        self._chunked = False
        self._left = 0
        """Bytes to come of the body, or of the present chunk; _UNKNOWN: all until the end."""
        self._body: list[bytes] = []

    def feed(self, data: bytes) -> HttpAnswer | None:
        self._unread = self._unread + data if self._unread else data
        while not self._status:
            if not self._read_head():
                return None
        done = self._read_chunks() if self._chunked else self._read_plain()
        return self._answer() if done else None

    def end(self) -> HttpAnswer:
        """Return what the end of the connection completes.

        Raises EndedEarly, or ConnectionResetError if not a byte of the answer came.
        """
        if not self._status and not self._unread:
            raise ConnectionResetError(errno.ECONNRESET, "closed without an answer")
        if not self._status or self._left != _UNKNOWN:
            raise EndedEarly
        return self._answer()

    def _answer(self) -> HttpAnswer:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        # Bytes behind the answer belong to nothing that was asked.
        return HttpAnswer(self._status, body, self._retry_after, self._is_last or bool(self._unread))

    def _read_head(self) -> bool:
        """Return whether one head was read: `_status` is 0 still if it was an interim one."""
        data = self._unread
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _MOST_HEAD:
                raise NotHttp
            return False
        started = _STATUS.match(data)
        if started is None or end > _MOST_HEAD:
            raise NotHttp
        status = int(started[2])
        headers = {name.lower(): value for name, value in _HEADERS.findall(data, started.end() - 2, end + 2)}
        self._unread = data[end + 4 :]
        if status < 200:
            return True
        self._status = status
        self._is_last = started[1] == b"0" or b"close" in headers.get(b"connection", b"").lower()
        self._retry_after = headers.get(b"retry-after", b"").decode("latin-1")
        self._frame(headers)
        return True

    def _frame(self, headers: dict[bytes, bytes]) -> None:
        """Note where the body ends."""
        if self._status in _WITHOUT_BODY:
            return
        if coding := headers.get(b"transfer-encoding"):
            if coding.lower() != b"chunked":
                raise NotHttp
            self._chunked = True
            self._unread = b"\r\n" + self._unread  # as if a chunk had ended
        elif (length := headers.get(b"content-length")) is None:
            self._left, self._is_last = _UNKNOWN, True
        elif length.isdigit():
            self._left = int(length)
        else:
            raise NotHttp

    def _read_plain(self) -> bool:
        if self._left == _UNKNOWN:
            self._body.append(self._unread)
            self._unread = b""
            return False
        self._unread = self._unread[self._take(0) :]
        return self._left == 0

    def _read_chunks(self) -> bool:
        data = self._unread
        at = self._take(0)
        done = False
        while self._left == 0 and not done and (line := _CHUNK.match(data, at)) is not None:
            self._left = int(line[1], 16)
            if self._left:
                at = self._take(line.end())
            elif (rest := _TRAILERS.match(data, line.end())) is not None:
                at, done = rest.end(), True
            else:
                break
        if self._left == 0 and not done and _is_malformed(data, at):
            raise NotHttp
        self._unread = data[at:]
        return done

    def _take(self, start: int) -> int:
        """Add what is there of the body from `start`. Returns where it ends."""
        piece = self._unread[start : start + self._left]
        if piece:
            self._body.append(piece)
            self._left -= len(piece)
        return start + len(piece)


def _is_malformed(data: bytes, at: int) -> bool:
    """Return whether no chunk can begin at `at`, whatever follows."""
    if len(data) - at > _MOST_HEAD:
        return True
    return data.find(b"\n", at + 2) >= 0 and _CHUNK.match(data, at) is None
