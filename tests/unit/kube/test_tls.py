"""HttpCluster against a TLS server that never says goodbye: an event loop that ends leaves no connection behind."""

import asyncio
import gc
import socket
import ssl
import threading
from contextlib import aclosing

import pytest

from hami_dra.api import kinds
from hami_dra.kube.credentials import Access
from hami_dra.kube.http import HttpCluster
from tests.support.certificates import serving_tls

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
EVENT = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}\n'


@pytest.fixture
def mute_server(tmp_path):
    """(url, tls of a client): sends one event of a watch, and then reads nothing and says nothing."""
    serving, authorities = serving_tls(tmp_path, "localhost")
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            plain, _ = listener.accept()
            with serving.wrap_socket(plain, server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(ANSWER % (len(EVENT), EVENT))
                done.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        trust = ssl.create_default_context(cadata=authorities)
        yield f"https://localhost:{listener.getsockname()[1]}", trust
        done.set()
        thread.join()


def test_a_watch_that_is_left_takes_its_connection_with_it(mute_server):
    url, trust = mute_server

    async def look():
        cluster = HttpCluster(Access(url, tls=trust))
        async with aclosing(cluster.watch(kinds.POD, resource_version="7")) as events:
            assert (await anext(events)).object.metadata.name == "a"
        await cluster.close()

    asyncio.run(look())
    gc.collect()  # an open transport would warn now, and a warning is an error
