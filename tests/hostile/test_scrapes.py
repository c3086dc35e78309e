"""L5: however many ask for /metrics at once, the loop renders once."""

import asyncio
import gzip

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from hami_dra.httpserver import Exposition, SharedRender, serving


class Counted:
    """Renders that are counted and wait until `go_on` is set."""

    def __init__(self):
        self.registry = CollectorRegistry()
        Gauge("a", "A value.", registry=self.registry).set(1)
        self.renders = 0
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()

    async def render(self):
        self.renders += 1
        self.begun.set()
        await self.go_on.wait()
        return await Exposition(self, lambda: iter(["b 2.0\n"] * 3)).render()


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_storm_of_scrapes_costs_one_render(encoding):
    counted = Counted()
    async with (
        serving("127.0.0.1", 0, render=counted.render, unready=list) as port,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def scrape():
            url = f"http://127.0.0.1:{port}/metrics"
            async with session.get(url, headers={"Accept-Encoding": encoding}) as response:
                return response.status, await response.text()

        scrapes = [asyncio.create_task(scrape()) for _ in range(100)]
        await counted.begun.wait()
        async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
            assert await response.text() == "ok\n"  # comes after the connections of the storm
        counted.go_on.set()
        answers = set(await asyncio.gather(*scrapes))
    assert counted.renders == 1
    [(status, text)] = answers
    assert status == 200
    assert "a 1.0\n" in text
    assert text.endswith("b 2.0\n" * 3)


async def test_renders_that_follow_each_other_leave_the_loop_to_others():
    loop = asyncio.get_running_loop()
    busy = 0.0

    async def render():
        nonlocal busy
        began = loop.time()
        await asyncio.sleep(0.02)
        busy += loop.time() - began
        return await Exposition(Counted()).render()

    shared = SharedRender(render)
    began = loop.time()
    for _ in range(4):
        await shared.get()
    assert busy < (loop.time() - began) / 2
    await shared.close()


async def test_a_failed_render_is_told_to_all_who_wait_and_the_next_one_is_another():
    failing = [True]

    async def render():
        if failing:
            failing.clear()
            raise LookupError("a bug in a collector")
        return await Exposition(Counted()).render()

    shared = SharedRender(render)
    first = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
    assert [type(each) for each in first] == [LookupError, LookupError]
    assert b"a 1.0" in gzip.decompress(b"".join((await shared.get()).pieces))
