"""Connections to an API server that are used for one request after the other.

Called by `transport` for requests whose answer is read as a whole; watches and proxies go through
aiohttp. A request takes half of the CPU time that it took with aiohttp's client, and requests were
the largest part of what the controller does for a pod (docs/performance.md). One object belongs to
one event loop.
"""

import asyncio
import errno
import ssl
from typing import Final, cast

import aiohttp
from yarl import URL

from hami_dra.kube.answer_reader import AnswerReader, HttpAnswer
from hami_dra.kube.bootclock import boot_clock

_MOST_IDLE: Final = 75.0
"""Seconds that an unused connection is kept; an API server closes it after 90."""
_HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds after which another address of the server's name is tried as well."""


class _Connection(asyncio.Protocol):
    """One connection, for one request at a time."""

    def __init__(self, all_open: "set[_Connection]") -> None:
        self._all_open = all_open
        self._reader: AnswerReader | None = None
        self._answer: asyncio.Future[HttpAnswer]
        self.transport: asyncio.Transport
        self.used_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._all_open.add(self)

    @property
    def is_open(self) -> bool:
        return self in self._all_open and not self.transport.is_closing()

    async def ask(self, request: bytes, not_after: float) -> HttpAnswer:
        """See `Connections.ask`."""
        if boot_clock() >= not_after:
            raise TimeoutError
        self._reader = AnswerReader()
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            return await self._answer
        finally:
            self._reader = None

    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._answer.done():
            self.transport.abort()  # nobody asked
            return
        try:
            answer = self._reader.feed(data)
        except ConnectionError as error:
            self._answer.set_exception(error)
        else:
            if answer is not None:
                self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all_open.discard(self)
        if self._reader is None or self._answer.done():
            return
        try:
            self._answer.set_result(self._reader.end())
        except ConnectionError as error:
            self._answer.set_exception(exc or error)


class Connections:
    """Connections to one server.

    `tls`: None for http://; `server_name`: as of `Access`. `connect`: seconds that connecting may
    take.
    """

    def __init__(self, server: str, tls: ssl.SSLContext | None, server_name: str, connect: float) -> None:
        self._server = server
        self._tls = tls
        self._server_name = server_name
        self._connect = connect
        self._url: URL | None = None
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []

    @property
    def host(self) -> str:
        """Return the value of the Host header. Raises InvalidURL."""
        return self._address().host_port_subcomponent or ""

    @property
    def prefix(self) -> str:
        """Return the path below which the server is. Raises InvalidURL."""
        return self._address().raw_path.rstrip("/")

    async def ask(self, request: bytes, not_after: float) -> HttpAnswer:
        """Send a request on a connection that is free, else on a new one, and return its answer.

        `not_after`: on the boot clock; after it nothing is sent, and TimeoutError raised. No other
        code of this loop runs between the check and the system call. Raises OSError.
        """
        connection = self._unused() or await self._connected()
        try:
            answer = await connection.ask(request, not_after)
        except BaseException:
            connection.transport.abort()
            raise
        if answer.is_last:
            connection.transport.abort()
        else:
            connection.used_at = boot_clock()
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        self._idle.clear()
        for connection in [*self._open]:
            connection.transport.abort()

    def _unused(self) -> _Connection | None:
        """Return the connection that was used last: the others may become superfluous."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and boot_clock() - connection.used_at < _MOST_IDLE:
                return connection
            connection.transport.abort()
        return None

    async def _connected(self) -> _Connection:
        loop, url = asyncio.get_running_loop(), self._address()
        host, port = url.host or "", url.port or 0
        async with asyncio.timeout(self._connect):
            transport, connection = await loop.create_connection(
                lambda: _Connection(self._open), host, port, happy_eyeballs_delay=_HAPPY_EYEBALLS_DELAY
            )
        if url.scheme == "https":
            tls = self._tls if self._tls is not None else ssl.create_default_context()
            name = self._server_name or host
            secured = await loop.start_tls(transport, connection, tls, server_hostname=name)
            if secured is None:  # closed by the server right after the handshake
                raise ConnectionResetError(errno.ECONNRESET, "closed")
            connection.transport = secured
        return connection

    def _address(self) -> URL:
        if self._url is None:
            try:
                url = URL(self._server)
            except ValueError:
                raise aiohttp.InvalidURL(self._server) from None
            if url.scheme not in ("http", "https") or not url.host or not url.port:
                raise aiohttp.InvalidURL(self._server)
            self._url = url
        return self._url
