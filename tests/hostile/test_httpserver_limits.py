"""L5: clients that send nothing, send slowly, read nothing or never finish a handshake hold neither descriptors nor the server."""

import asyncio
from contextlib import suppress

import aiohttp
import pytest
from aiohttp import web

from hami_dra.httpserver import Limits, listening
from tests.support.certificates import serving_tls

QUICK = {"headers": 0.3, "idle": 5.0, "request": 5.0}


def application(**handlers):
    app = web.Application()

    async def hello(_request):
        return web.Response(text="hello")

    for path, handler in {"": hello, **handlers}.items():
        app.router.add_route("*", f"/{path}", handler)
    return app


async def get(port, path="/", scheme="http"):
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
        session.get(f"{scheme}://127.0.0.1:{port}{path}") as answer,
    ):
        return await answer.text()


async def read_to_end(reader):
    """How many bytes came until the server ended the connection, by whatever means."""
    received = 0
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                received += len(data)
    return received


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"],
)
async def test_a_client_that_does_not_finish_its_request_is_cut(sent):
    async with listening(application(), "127.0.0.1", 0, limits=Limits(**QUICK)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await read_to_end(reader)
        writer.close()
        assert await get(port) == "hello"


async def test_a_crowd_of_silent_clients_shuts_nobody_out():
    limits = Limits(connections=8, headers=60.0)
    async with listening(application(), "127.0.0.1", 0, limits=limits) as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        async with asyncio.timeout(10):
            for _ in range(5):
                assert await get(port) == "hello"
        # those that came first had to go, so that descriptors are bounded
        for reader, _ in clients[:30]:
            await read_to_end(reader)
        for _, writer in clients:
            writer.close()


async def test_a_connection_in_use_is_not_given_up_for_new_ones():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request):
        begun.set()
        await go_on.wait()
        return web.Response(text="done")

    async with listening(application(slow=slow), "127.0.0.1", 0, limits=Limits(connections=2)) as port:
        first = asyncio.create_task(get(port, "/slow"))
        await begun.wait()
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
        assert await get(port) == "hello"
        go_on.set()
        assert await first == "done"


async def test_an_idle_connection_and_an_endless_request_are_cut():
    async def endless(_request):
        await asyncio.Event().wait()

    limits = Limits(headers=5.0, idle=0.2, request=0.2)
    async with listening(application(endless=endless), "127.0.0.1", 0, limits=limits) as port:
        for path in (b"/", b"/endless"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            await read_to_end(reader)
            writer.close()


async def test_a_client_that_does_not_read_its_answer_is_cut():
    async def large(_request):
        return web.Response(body=bytes(64 << 20))

    limits = Limits(headers=5.0, idle=0.3, request=5.0)
    async with listening(application(large=large), "127.0.0.1", 0, limits=limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(2.0)  # longer than a sweep and `idle`; reads nothing
        assert await read_to_end(reader) < 64 << 20
        writer.close()


async def test_handshakes_that_never_end_count_and_are_cut(tmp_path):
    context, _ = serving_tls(tmp_path, "localhost")
    limits = Limits(connections=4, headers=0.5)
    async with listening(application(), "127.0.0.1", 0, limits=limits, tls=context) as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        assert await get(port, scheme="https") == "hello"
        for reader, writer in clients:
            await read_to_end(reader)
            writer.close()


async def test_a_port_that_is_taken_is_an_error_and_ending_leaves_nothing_open():
    async with listening(application(), "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            async with listening(application(), "127.0.0.1", port):
                pass
        assert await get(port) == "hello"
    await read_to_end(reader)
    writer.close()


async def client(port, source):
    """A connection from an address of its own (all of 127.0.0.0/8 is this machine)."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def test_an_address_with_connections_without_end_takes_them_from_itself():
    """The API server, at another address, keeps its idle connection and gets new ones."""
    async with listening(application(), "127.0.0.1", 0, limits=Limits(connections=8)) as port:
        reader, writer = await client(port, "127.0.0.3")
        hostile = [await client(port, "127.0.0.2") for _ in range(30)]
        assert await get(port) == "hello"
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(10):
            assert b"200 OK" in await reader.readline()
        for _, each in [(reader, writer), *hostile]:
            each.close()


async def test_bytes_of_requests_that_never_end_are_bounded():
    async with listening(application(), "127.0.0.1", 0, limits=Limits(unanswered_bytes=200_000)) as port:
        hostile = [await client(port, "127.0.0.2") for _ in range(6)]
        for _, writer in hostile:
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + b"x" * 90_000)
        readers = [asyncio.ensure_future(read_to_end(reader)) for reader, _ in hostile]
        cut, waiting = 0, set(readers)
        while cut < 4:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            cut += len(ended)
        assert await get(port) == "hello"
        for _, writer in hostile:
            writer.close()
        await asyncio.gather(*readers)
