"""/healthz, /readyz and /metrics of a program that serves a cluster.

Started by the controller when it was given a port, and for the node driver. healthz: the loop answers. readyz: the local copies are complete and
fresh; a standby is ready too. Must not change anything.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest


class HasRegistry(Protocol):
    """What a program counts."""

    registry: CollectorRegistry


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    metrics: HasRegistry,
    unready: Callable[[], list[str]],
    more: Callable[[], Iterable[str]] = tuple,
) -> AsyncIterator[int]:
    """Yields the port (a free one for 0). `unready`: why not ready, empty when ready. `more`: what /metrics says after the
    registry's text, in pieces; between two of them others run. Raises OSError when the port is taken.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        problems = unready()
        if problems:
            return web.Response(status=503, text="".join(f"{problem}\n" for problem in problems))
        return web.Response(text="ok\n")

    async def exposition(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        response.enable_compression()
        await response.prepare(request)
        await response.write(generate_latest(metrics.registry))
        for text in more():
            if text:
                await response.write(text.encode())
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition, allow_head=False)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        address = runner.addresses[0]
        yield int(address[1])
    finally:
        await runner.cleanup()
