"""Serve an aiohttp application with bounds on connections, time and memory.

    async with listening(app, "0.0.0.0", 8080) as port: ...

No client can hold a file descriptor indefinitely, and no set of clients can use up all of them.
Used for /healthz and /metrics of controller and driver (`health`) and by the
webhook (`controller.webhook.server`). aiohttp has one timeout (`keepalive_timeout`) and accepts any
number of connections. This module adds a limit on connections that includes TLS handshakes, one on
the bytes of unanswered requests, and deadlines for headers, idle connections and requests.

At a limit, the address with the most connections loses the one that has been without a complete
request for longest. Clients that send nothing, or never finish (slowloris), therefore lock out no
other client, and an address that keeps opening connections takes them from itself. A new connection
is refused only while all others have a request in their handler.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_SWEEP_SECONDS: Final = 1.0
_OUT_OF_FILES_PAUSE: Final = 0.1


class Limits(Struct, frozen=True):
    """Seconds, and a number of connections. A connection that exceeds its time is closed, without an answer."""

    connections: int = 256
    unanswered_bytes: int = 64 << 20
    """Bytes received on all connections together, for requests without an answer yet."""
    headers: float = 10.0
    """From the connection to the end of its first request's headers and body, including a TLS handshake."""
    idle: float = 120.0
    """From the end of one request to the end of the next one's headers and body. Go's clients (the
    API server, Prometheus) close their connections after 90 s: a server that does so first may cut
    a request that is just being sent.
    """
    request: float = 30.0
    """In the handler, until it has returned its answer or, if it streams, has written it. Time that
    the client takes to read the answer after that counts as `idle`.
    """


class _Connection:
    """One accepted socket. `since`: when its present state began, on the loop's clock."""

    def __init__(self, now: float, peer: str) -> None:
        self.since = now
        self.peer = peer
        """The client's address."""
        self.unanswered_bytes = 0
        self.handling = False
        self.requests = 0
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        """Handshake and setup, until the protocol has the transport."""

    def cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class _Protocol(asyncio.Protocol):
    """Wraps aiohttp's protocol to observe connections opening and closing."""

    def __init__(self, inner: "web.RequestHandler", connection: _Connection, crowd: "_Crowd") -> None:
        self._inner = inner
        self._connection = connection
        self._crowd = crowd

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.transport = transport
        self._crowd.known[self._inner] = self._connection
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self._connection)
        self._crowd.known.pop(self._inner, None)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._crowd.receive(self._connection, len(data)):
            self._inner.data_received(data)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class _Crowd:
    """All connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connections: set[_Connection] = set()
        self.known: dict[web.RequestHandler, _Connection] = {}
        self.unanswered_bytes = 0

    def enter(self, now: float, peer: str) -> _Connection | None:
        """Return a new connection; None if the limit is reached and all others are busy."""
        if len(self.connections) >= self.limits.connections and not self.make_room():
            return None
        connection = _Connection(now, peer)
        self.connections.add(connection)
        return connection

    def receive(self, connection: _Connection, count: int) -> bool:
        """Count bytes of a request. Returns False if the connection had to be closed for them."""
        connection.unanswered_bytes += count
        self.unanswered_bytes += count
        while self.unanswered_bytes > self.limits.unanswered_bytes and self.make_room():
            pass
        return connection in self.connections

    def answered(self, connection: _Connection) -> None:
        self.unanswered_bytes -= connection.unanswered_bytes
        connection.unanswered_bytes = 0

    def make_room(self) -> bool:
        """Close one connection of the address that has the most of them.

        It is the one that has been without a request for longest; connections that never had one go
        first.
        """
        waiting = [each for each in self.connections if not each.handling]
        if not waiting:
            return False
        of_peer = Counter(each.peer for each in self.connections)
        oldest = min(waiting, key=lambda each: (-of_peer[each.peer], each.requests > 0, each.since))
        self.leave(oldest)
        oldest.cut()
        return True

    def leave(self, connection: _Connection) -> None:
        self.answered(connection)
        self.connections.discard(connection)

    def sweep(self, now: float) -> None:
        for connection in tuple(self.connections):
            if now - connection.since > self._allowed(connection):
                self.leave(connection)
                connection.cut()

    async def end_handshakes(self) -> None:
        opening = [each.opening for each in self.connections if each.opening is not None]
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)

    def _allowed(self, connection: _Connection) -> float:
        if connection.handling:
            return self.limits.request
        return self.limits.idle if connection.requests else self.limits.headers

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark the connection as busy. The body is read first, so that a slow sender can be cut off."""
        connection = self.known.get(request.protocol)
        try:
            await request.read()
        except (ConnectionError, web.RequestPayloadError) as error:
            log.debug("a request from %s was truncated: %s", request.remote, error)
            return web.Response(status=400)
        if connection is None:  # a connection of another server of this application
            return await handler(request)
        loop = asyncio.get_running_loop()
        connection.handling, connection.since = True, loop.time()
        try:
            return await handler(request)
        finally:
            connection.requests += 1
            connection.handling, connection.since = False, loop.time()
            self.answered(connection)


@asynccontextmanager
async def listening(
    app: web.Application,
    host: str,
    port: int,
    *,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    shutdown_timeout: float = 1.0,
) -> AsyncIterator[int]:
    """Serve within the block and yield the port (a free one for 0).

    Adds a middleware to `app`. `shutdown_timeout`: seconds that pending requests get when the block
    ends. Raises OSError if the port is taken.
    """
    chosen = limits or Limits()
    crowd = _Crowd(chosen)
    app.middlewares.append(crowd.middleware)
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=shutdown_timeout, keepalive_timeout=chosen.idle
    )
    await runner.setup()
    tasks: list[asyncio.Task[None]] = []
    sockets: list[socket.socket] = []
    try:
        sockets.extend(await _bind(host, port))
        tasks.extend(asyncio.create_task(_accept(each, runner, crowd, tls)) for each in sockets)
        tasks.append(asyncio.create_task(_sweep(crowd)))
        yield int(sockets[0].getsockname()[1])
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for each in sockets:
            each.close()
        await crowd.end_handshakes()
        await runner.cleanup()


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at every address of the name, like asyncio's own servers."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
            each.listen(_BACKLOG)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


async def _accept(listener: socket.socket, runner: web.AppRunner, crowd: _Crowd, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, address = await loop.sock_accept(listener)
        except OSError as error:
            # No file descriptor left, or the client gave up before it was accepted.
            log.debug("a connection could not be accepted: %s", error)
            crowd.make_room()
            await asyncio.sleep(_OUT_OF_FILES_PAUSE)
            continue
        connection = crowd.enter(loop.time(), str(address[0]))
        if connection is None:
            accepted.close()
            continue
        connection.opening = asyncio.create_task(_open(accepted, connection, runner, crowd, tls))


async def _open(
    accepted: socket.socket, connection: _Connection, runner: web.AppRunner, crowd: _Crowd, tls: ssl.SSLContext | None
) -> None:
    server = runner.server
    assert server is not None
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _Protocol(server(), connection, crowd),
            sock=accepted,
            ssl=tls,
            ssl_handshake_timeout=crowd.limits.headers if tls is not None else None,
        )
    except OSError as error:  # an SSLError is one, and so is a handshake timeout
        log.debug("a connection was not opened: %s", error)
    finally:
        if connection.transport is None:
            crowd.leave(connection)
            accepted.close()
        connection.opening = None


async def _sweep(crowd: _Crowd) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        crowd.sweep(loop.time())
