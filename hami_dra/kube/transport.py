"""Requests to an API server: credentials, connections, deadlines, retries. Bytes in, bytes out.

Called by `http.HttpCluster` only. One Transport belongs to one event loop. Reads are retried while
the server is busy or unreachable. A write is sent once (again only after a 429 of a busy server,
which means that it was not carried out, or after renewed credentials) and ends, with or without success, within
`Timeouts.write` seconds: leader election relies on that bound. A loop that was frozen in between
does not run its timers before it sends, so the clock is checked again right before the body is
sent.
"""

import asyncio
import errno
import re
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from types import TracebackType
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from hami_dra.api.errors import ConfigError
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.credentials import Access
from hami_dra.kube.decoding import Status, error_of, read_status
from hami_dra.kube.lease_timings import MOST_WRITE_SECONDS
from hami_dra.kube.protocol import Unavailable

_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_CAUSES: Final = {
    errno.ECONNREFUSED: "connection refused: {server}: is the API server up, and is the context the right one?",
    errno.EHOSTUNREACH: "no route to {server}: is the network up, or a VPN needed?",
    errno.ENETUNREACH: "no route to {server}: is the network up, or a VPN needed?",
    errno.ETIMEDOUT: "no answer from {server} in time: is the network up, or a VPN needed?",
    errno.ECONNRESET: "{server} closed the connection",
    errno.EPIPE: "{server} closed the connection",
}


def why_not_connected(error: Exception, server: str) -> str:
    """Return one sentence for an error of aiohttp or of the operating system, and what to check. Texts of
    aiohttp are never repeated: they contain the URL of a proxy with its password.

    >>> why_not_connected(ConnectionRefusedError(111, "Connection refused"), "https://10.0.0.1:6443")
    'connection refused: https://10.0.0.1:6443: is the API server up, and is the context the right one?'
    >>> why_not_connected(aiohttp.ServerDisconnectedError(), "https://10.0.0.1:6443")
    'https://10.0.0.1:6443 closed the connection'
    """
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
        return f"the proxy for {server} cannot be reached: see proxy-url in the kubeconfig, else HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name in {server} cannot be resolved: is the address in the kubeconfig right?"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {server} is not trusted{_certificate_problem(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return f"{server} does not speak TLS as expected: is it https, and the client certificate valid?"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return f"{server} closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return f"the answer of {server} ended early"
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return f"{server} is not a valid address: see server in the kubeconfig"
    known = _CAUSES.get(_errno(error))
    return known.format(server=server) if known else f"the connection to {server} failed{_system_error(error)}"


def _certificate_problem(error: Exception) -> str:
    text = getattr(error, "verify_message", "")
    return f": {text}; is its certificate authority that of the kubeconfig?" if text else ""


def _errno(error: Exception) -> int:
    """Return the system's error number; 0 if there is none. Where several addresses were tried, the first one's."""
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None)
    if isinstance(number, int):
        return number
    found = _ERRNO.search(str(cause))
    return int(found[1]) if found else 0


def _system_error(error: Exception) -> str:
    number = _errno(error)
    return f": {errno.errorcode[number]}" if number in errno.errorcode else ""


JSON_TYPE: Final = "application/json"
_MOST_WAIT: Final = 30.0
"""Seconds; upper bound of any Retry-After of a server or proxy, because a process that sleeps for hours seems dead."""
SSLProtocol.max_size = 2**16
"""Bytes of the buffer that asyncio allocates for each TLS connection; its own value, 256 KiB, makes
a connection that carries an event now and then cost half a megabyte with OpenSSL's copy. No larger
reads are lost: a TLS record has 16 KiB at most. Not smaller: it is then no block of its own for the
C library (`controller.cli.heap`), and keeps freed memory around it from being returned.
"""


class Timeouts(Struct, frozen=True):
    """Seconds. `watch_silence`: bookmarks come about once a minute, so a longer silence is a dead
    connection. `initial_silence`: between two of the initial events of a watch, or after them; all
    of them must come within `watch`.
    """

    connect: float = 5.0
    read: float = 60.0
    write: float = MOST_WRITE_SECONDS
    watch: float = 300.0
    watch_silence: float = 150.0
    initial_silence: float = 15.0
    attempts: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.write <= MOST_WRITE_SECONDS:
            raise ConfigError(f"write timeout {self.write} s: it must be above 0 and at most {MOST_WRITE_SECONDS} s")


class _TimelyBody(aiohttp.BytesPayload):
    """A body that is not sent after a deadline on the boot clock; without it the request is incomplete."""

    def __init__(self, data: bytes, not_after: float) -> None:
        super().__init__(data)
        self._not_after = not_after

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write the body, or raise TimeoutError. No other code of this loop runs until the system call."""
        if boot_clock() >= self._not_after:
            raise TimeoutError
        await super().write_with_length(writer, content_length)


class _Unanswered:
    """Turns errors of the transport into Unavailable; a class, because a generator costs more.

    `what`: name of the request.
    """

    __slots__ = ("_server", "_what")

    def __init__(self, what: str, server: str) -> None:
        self._what = what
        self._server = server

    def __enter__(self) -> None:
        return

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, TimeoutError):
            raise Unavailable(f"{self._what}: no answer from {self._server} in time") from None
        if isinstance(error, (aiohttp.ClientError, OSError)):
            raise Unavailable(f"{self._what}: {why_not_connected(error, self._server)}") from None


class Transport:
    def __init__(self, access: Access, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def read(self, what: str, path: str, query: Mapping[str, str], *, accept: str = JSON_TYPE) -> bytes:
        """GET, retried while the server is busy or unreachable."""
        backoff = Backoff(first=0.1, most=2.0)
        timeout = aiohttp.ClientTimeout(total=self.timeouts.read, sock_connect=self.timeouts.connect)
        while True:
            try:
                code, body, wait = await self._once("GET", what, path, query, {"Accept": accept}, timeout=timeout)
                if code < 300:
                    return body
                error = error_of(code, read_status(body), what)
                if not isinstance(error, Unavailable):
                    raise error
            except Unavailable as unavailable:
                error, wait = unavailable, 0.0
            if backoff.failures + 1 >= self.timeouts.attempts:
                raise error
            await asyncio.sleep(max(wait, backoff.next()))

    async def write(
        self,
        method: str,
        what: str,
        path: str,
        query: Mapping[str, str],
        document: Any,
        *,
        content_type: str = JSON_TYPE,
        asked_at: float | None = None,
    ) -> bytes:
        """Send one write.

        `document` is encoded as JSON; bytes are sent unchanged. `asked_at`: time of the request on
        the boot clock if it was before now; the deadline counts from there.
        """
        not_after = (boot_clock() if asked_at is None else asked_at) + self.timeouts.write
        data = document if isinstance(document, bytes) else msgspec.json.encode(document)
        headers = {"Accept": JSON_TYPE, "Content-Type": content_type}
        backoff = Backoff(first=0.1, most=2.0)
        try:
            # One deadline over all attempts: after it, no part of this write is pending.
            async with asyncio.timeout(self.timeouts.write):
                while True:
                    timely = _TimelyBody(data, not_after)
                    code, body, wait = await self._once(method, what, path, query, headers, data=timely)
                    if code < 300:
                        return body
                    status = read_status(body)
                    if code != 429 or wait >= self.timeouts.write or status.budget_words:
                        raise error_of(code, status, what)
                    await asyncio.sleep(max(wait, backoff.next()))
        except TimeoutError:
            raise Unavailable(f"{what}: no answer within {self.timeouts.write} s") from None

    async def _once(
        self, method: str, what: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], **options: Any
    ) -> tuple[int, bytes, float]:
        """Return status code, body, and the seconds that the server asks to wait. Raises Unavailable."""
        with _Unanswered(what, self._access.server):
            response = await self._ask(method, path, query, headers, **options)
            try:
                body = await response.read()
            finally:
                _abandon(response)
        return response.status, body, retry_after(response, body)

    @asynccontextmanager
    async def response(
        self,
        what: str,
        path: str,
        query: Mapping[str, str],
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 (aiohttp's own)
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Yield the response to a GET, to be read while it comes. Raises Unavailable."""
        with _Unanswered(what, self._access.server):
            response = await self._ask("GET", path, query, {"Accept": JSON_TYPE}, timeout=timeout)
            try:
                yield response
            finally:
                _abandon(response)

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], **options: Any
    ) -> aiohttp.ClientResponse:
        """Return a response of which the headers were read; after a 401 the second one, with renewed credentials."""
        headers = CIMultiDict((*headers.items(), *self._access.impersonation))
        url = _url_of(self._access.server, path, query)
        if self._access.server_name:
            options["server_hostname"] = self._access.server_name
        if self._access.proxy:
            options["proxy"] = self._access.proxy
        renew = False
        while True:
            if authorization := await self._access.identity.header(renew=renew):
                headers["Authorization"] = authorization
            response = await self._open_session().request(
                method, url, headers=headers, allow_redirects=False, **options
            )
            if response.status != 401 or renew:
                return response
            response.release()
            renew = True

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Compression costs both sides more than a cluster's network; Kubernetes' own components
                # disable it, too.
                headers={"Accept-Encoding": "identity", "User-Agent": "hami-dra"},
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(
                    # watches hold connections for minutes; callers bound their own concurrency
                    limit=0,
                    ssl=self._access.tls if self._access.tls is not None else True,
                    keepalive_timeout=75.0,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect),
                trust_env=False,
                read_bufsize=2**18,
            )
        return self._session


def _url_of(server: str, path: str, query: Mapping[str, str]) -> URL:
    """Return the URL of a request. Raises InvalidURL.

    aiohttp would parse address and query again for each request, which takes it three times as
    long.
    """
    try:
        below = _asking(server, tuple(query.items()))
        return below.with_path(below.path.rstrip("/") + path, keep_query=True)
    except ValueError:
        raise aiohttp.InvalidURL(server) from None


@lru_cache(maxsize=256)
def _asking(server: str, query: tuple[tuple[str, str], ...]) -> URL:
    """Return the server's URL with a query: nearly all requests have one of a few."""
    return URL(server).with_query(query)


def _abandon(response: aiohttp.ClientResponse) -> None:
    """Cut the connection of a body that was not read to its end.

    It cannot be used again, and aiohttp's graceful close would wait for the server's TLS
    close_notify, possibly after the event loop has ended.
    """
    connection = response.connection  # None: read to its end and returned to the pool
    if connection is not None:
        if connection.transport is not None:
            connection.transport.abort()
        response.close()


def retry_after(response: aiohttp.ClientResponse, body: bytes) -> float:
    """Return the seconds that the server asks to wait, between 0 and `_MOST_WAIT`."""
    text = response.headers.get("Retry-After", "")
    if text.isascii() and text.isdecimal():
        return min(float(text), _MOST_WAIT)
    status = read_status(body) if response.status in (429, 503) else Status()
    asked = status.details.retry_after_seconds if status.details else 0
    return float(min(max(asked, 0), _MOST_WAIT))
