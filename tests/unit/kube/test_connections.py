"""Connections: kept for the next request, and never used again when in doubt."""

import asyncio
import math
import ssl
from contextlib import asynccontextmanager

import pytest

from hami_dra.api import kinds
from hami_dra.kube.bootclock import boot_clock
from hami_dra.kube.connections import Connections
from hami_dra.kube.credentials import Access, FixedIdentity
from hami_dra.kube.http import HttpCluster
from hami_dra.kube.protocol import ConfigError, Unavailable
from hami_dra.kube.transport import Timeouts
from tests.support.certificates import serving_tls

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Peer:
    """A server that answers each request with `answer`, in pieces; counts connections and requests."""

    def __init__(self):
        self.pieces = [OK]
        self.connections = 0
        self.requests = []
        self.writers = []

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running(peer, **options):
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, **options)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for writer in peer.writers:
            writer.transport.abort()


@pytest.fixture
def peer():
    return Peer()


@pytest.fixture
async def connections(peer):
    async with running(peer) as port:
        found = Connections(f"http://127.0.0.1:{port}/below/", None, "", 5)
        yield found
        found.close()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.001)


async def test_one_connection_serves_one_request_after_the_other(peer, connections):
    for _ in range(3):
        assert (await connections.ask(REQUEST, math.inf)).body == b"{}"
    assert (peer.connections, len(peer.requests)) == (1, 3)
    assert connections.prefix == "/below"


async def test_requests_at_the_same_time_have_connections_of_their_own(peer, connections):
    await asyncio.gather(*[connections.ask(REQUEST, math.inf) for _ in range(3)])
    assert peer.connections == 3
    await asyncio.gather(*[connections.ask(REQUEST, math.inf) for _ in range(3)])
    assert peer.connections == 3


async def test_a_connection_that_the_server_closed_is_not_used(peer, connections):
    await connections.ask(REQUEST, math.inf)
    peer.writers[0].close()
    await until(lambda: not connections._open)
    await connections.ask(REQUEST, math.inf)
    assert peer.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"more",
    ],
)
async def test_a_connection_of_which_no_more_can_be_expected_is_closed(peer, connections, answer):
    peer.pieces = [answer]
    await connections.ask(REQUEST, math.inf)
    await until(lambda: not connections._open)
    peer.pieces = [OK]
    await connections.ask(REQUEST, math.inf)
    assert peer.connections == 2


async def test_bytes_between_two_answers_close_the_connection(peer, connections):
    await connections.ask(REQUEST, math.inf)
    peer.writers[0].write(OK)
    await until(lambda: not connections._open)
    await connections.ask(REQUEST, math.inf)
    assert peer.connections == 2


async def test_a_connection_that_was_long_unused_is_left(peer, connections, monkeypatch):
    await connections.ask(REQUEST, math.inf)
    late = boot_clock() + 76
    monkeypatch.setattr("hami_dra.kube.connections.boot_clock", lambda: late)
    await connections.ask(REQUEST, math.inf)
    assert peer.connections == 2


async def test_the_answer_to_a_request_that_was_given_up_reaches_no_other(peer, connections):
    peer.pieces = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connections.ask(REQUEST, math.inf)
    peer.pieces = [OK]
    assert (await connections.ask(REQUEST, math.inf)).body == b"{}"
    assert peer.connections == 2


async def test_nothing_is_sent_after_its_time(peer, connections):
    with pytest.raises(TimeoutError):
        await connections.ask(REQUEST, boot_clock() - 0.001)
    assert peer.requests == []


async def test_closing_ends_what_waits(peer, connections):
    peer.pieces = []
    waiting = asyncio.create_task(connections.ask(REQUEST, math.inf))
    await until(lambda: peer.requests)
    connections.close()
    with pytest.raises(ConnectionError):
        await waiting


# --- as a cluster shows it -----------------------------------------------------------------------


@asynccontextmanager
async def cluster(url, **access):
    found = HttpCluster(Access(url, **access), timeouts=Timeouts(attempts=1))
    try:
        yield found
    finally:
        await found.close()


async def test_tls_with_another_name_in_the_certificate(peer, tmp_path):
    serving, authorities = serving_tls(tmp_path, "api.test")
    peer.pieces = [OK.replace(b"{}", b'{"metadata":{"name":"a"}}').replace(b": 2", b": 25")]
    trust = ssl.create_default_context(cadata=authorities)
    async with running(peer, ssl=serving) as port:
        url = f"https://127.0.0.1:{port}"
        async with cluster(url, tls=trust, server_name="api.test") as named:
            assert (await named.get(kinds.NODE, "a")).metadata.name == "a"
        async with cluster(url, tls=trust) as unnamed:
            with pytest.raises(Unavailable, match=r"certificate of https://127.0.0.1:\d+ is not trusted: .*127.0.0.1"):
                await unnamed.get(kinds.NODE, "a")
        async with cluster(url) as stranger:
            with pytest.raises(Unavailable, match="is its certificate authority that of the kubeconfig"):
                await stranger.get(kinds.NODE, "a")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n"], "is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{", b""], "ended early"),
    ],
)
async def test_what_is_no_answer_is_unavailable(peer, pieces, words):
    peer.pieces = pieces
    async with running(peer) as port, cluster(f"http://127.0.0.1:{port}") as found:
        waiting = asyncio.create_task(found.get(kinds.NODE, "a"))
        await until(lambda: peer.requests)
        await asyncio.sleep(0)
        peer.writers[0].close()
        with pytest.raises(Unavailable, match=words):
            await waiting


async def test_https_where_there_is_none(peer):
    async with running(peer) as port, cluster(f"https://127.0.0.1:{port}") as found:
        peer.pieces = []
        waiting = asyncio.create_task(found.get(kinds.NODE, "a"))
        await until(lambda: peer.writers)
        peer.writers[0].write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(Unavailable, match="does not speak TLS"):
            await waiting


@pytest.mark.parametrize("url", ["https://", "127.0.0.1:6443", "https://a:notaport", "ftp://a/"])
async def test_an_address_that_is_none(url):
    async with cluster(url) as found:
        with pytest.raises(Unavailable, match="is not a valid address"):
            await found.get(kinds.NODE, "a")


async def test_names_and_values_are_quoted(peer):
    async with running(peer) as port, cluster(f"http://127.0.0.1:{port}/k8s") as found:
        await found.get(kinds.POD, "a b?c\r\nd", "n s")
        await found.list(kinds.POD, label_selector="a in (b, c)&d")
    first, second = (request.decode().split("\r\n")[0] for request in peer.requests)
    assert first == "GET /k8s/api/v1/namespaces/n%20s/pods/a%20b%3Fc%0D%0Ad HTTP/1.1"
    assert second.startswith("GET /k8s/api/v1/pods?labelSelector=a+in+%28b%2C+c%29%26d&limit=")


async def test_a_token_that_would_add_a_header_is_never_sent(peer):
    identity = FixedIdentity("Bearer a\r\nX: y")
    async with running(peer) as port, cluster(f"http://127.0.0.1:{port}", identity=identity) as found:
        with pytest.raises(ConfigError, match="line break"):
            await found.get(kinds.NODE, "a")
    assert peer.requests == []
