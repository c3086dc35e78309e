"""/healthz, /readyz and /metrics of a program that serves a cluster.

Started by the controller if it was given a port, and for the node driver. healthz: the program is
alive. readyz: its local copies are complete and fresh; a standby is ready, too. It must change
nothing. It may run in a separate thread: the caller makes its callbacks (`unhealthy`, `unready`,
`render`) safe for that.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import hdrs, web

from hami_dra.httpserver.exposition import Rendered, SharedRender
from hami_dra.httpserver.listening import listening

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_RENDER_SECONDS: Final = 20.0


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    *,
    render: Callable[[], Awaitable[Rendered]],
    unready: Callable[[], Iterable[str]],
    unhealthy: Callable[[], Iterable[str]] = tuple,
) -> AsyncIterator[int]:
    """Yield the port (a free one for 0). Raises OSError if the port is taken.

    `unhealthy`, `unready`: return the reasons, empty if there are none; `render`: returns /metrics.
    """
    shared = SharedRender(render)

    async def healthz(_request: web.Request) -> web.Response:
        return _answer(unhealthy())

    async def readyz(_request: web.Request) -> web.Response:
        return _answer((*unhealthy(), *unready()))

    async def metrics(request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_RENDER_SECONDS):
                rendered = await shared.get()
        except TimeoutError:
            return web.Response(status=503, text="the metrics could not be collected in time\n")
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            encoded = {hdrs.CONTENT_TYPE: _CONTENT_TYPE, hdrs.CONTENT_ENCODING: "gzip"}
            return web.Response(body=b"".join(rendered.pieces), headers=encoded)
        return await _stream(request, rendered)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics, allow_head=False)
    try:
        async with listening(app, host, port) as bound:
            yield bound
    finally:
        await shared.close()


def _answer(problems: Iterable[str]) -> web.Response:
    text = "".join(f"{problem}\n" for problem in problems)
    return web.Response(status=503, text=text) if text else web.Response(text="ok\n")


async def _stream(request: web.Request, rendered: Rendered) -> web.StreamResponse:
    """Stream tens of megabytes for a large cluster: decompressed in pieces, never as a whole."""
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: _CONTENT_TYPE})
    await response.prepare(request)
    for text in rendered.plain():
        await response.write(text)
    await response.write_eof()
    return response
