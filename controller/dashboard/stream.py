"""Updates for open pages by server-sent events: a page's fragment, whenever it has changed.

`EventBroker` is notified of each change (`Source.on_change`); `follow` serves one page until it is
closed. Changes are batched: a page gets at most one fragment a second, on large clusters fewer, so
that rendering takes no more than a twentieth of the time. Pages with the same content and language
share the rendering. Nothing is rendered for pages that are not open.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from controller.dashboard import render
from controller.dashboard.cardpages import NoSuchThing
from controller.dashboard.pacing import breath
from controller.dashboard.pages import Page
from hami_dra.kube.waiting import wait_at_most

MOST_STREAMS: Final = 64
"""Limit of open pages; those beyond get Retry-After and stay readable."""
SHARE: Final = 20
"""Rendering of a fragment may take one part in this many of the time. Processor time of this thread
counts: on a busy machine pages are not updated more seldom for what others do.
"""
_BEAT: Final = 15.0
"""Seconds between keep-alive messages, so that no proxy closes an idle stream."""
_MOST_KEPT: Final = 64
_LONGEST_KEPT: Final = 10.0
"""Seconds that a fragment is served unchanged: it contains ages."""


class EventBroker:
    """`count`: returns the number of pods that wait, for the badge in the menu."""

    def __init__(
        self, pages: Mapping[str, Page], count: Callable[[], int] = lambda: 0, *, interval: float = 1.0
    ) -> None:
        self._pages = pages
        self._count = count
        self._counted = (-1, 0)
        """Version, and the number of pods that waited then."""
        self._interval = interval
        self._version = 0
        self._turn = asyncio.Event()
        self._made: OrderedDict[tuple[str, str], tuple[int, float, str, float]] = OrderedDict()
        """(view, language) → version, processor seconds of rendering, fragment, when it was rendered."""
        self._making: dict[tuple[str, str], asyncio.Lock] = {}
        self.streams = 0

    def changed(self) -> None:
        self._version += 1
        self._turn.set()

    def pending(self) -> int:
        """Counted once for each version."""
        if self._counted[0] != self._version:
            self._counted = (self._version, self._count())
        return self._counted[1]

    async def make(self, view: str, language: str) -> tuple[str, float]:
        """Return the fragment of a path with query, and the seconds of processor time it took. Raises NoSuchThing."""
        key = (view, language)
        lock = self._making.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                kept = self._made.get(key)
                if kept is not None and kept[0] == self._version and time.monotonic() - kept[3] < _LONGEST_KEPT:
                    return kept[2], kept[1]
                await breath()
                version, start, busy = self._version, time.monotonic(), time.thread_time()
                address = urlsplit(view)
                page = self._pages.get(address.path)
                if page is None:
                    raise NoSuchThing(address.path)
                context = await page.context(dict(parse_qsl(address.query)))
                text = await render.paced_fragment(page.template, context, language)
                took = time.thread_time() - busy
                self._made[key] = (version, took, text, start)
                self._made.move_to_end(key)
                while len(self._made) > _MOST_KEPT:
                    self._made.popitem(last=False)
                return text, took
        finally:
            if not lock.locked():
                self._making.pop(key, None)

    async def follow(
        self, request: web.Request, view: str, language: str, seen: str, may_look: Callable[[], Awaitable[bool]]
    ) -> web.StreamResponse:
        """Serve updates to one page until it is closed. `seen`: digest of the fragment that it shows."""
        if self.streams >= MOST_STREAMS:
            return web.Response(status=503, headers={"Retry-After": "30"}, text="too many open pages\n")
        of_stream = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=of_stream | request.app[headers_key])
        self.streams += 1
        try:
            await response.prepare(request)
            await response.write(b": hello\n\n")
            await self._tell(response, view, language, seen, may_look)
        except ConnectionError:
            pass  # the page was closed
        finally:
            self.streams -= 1
        return response

    async def _tell(
        self, response: web.StreamResponse, view: str, language: str, seen: str, may_look: Callable[[], Awaitable[bool]]
    ) -> None:
        version, pause, pending = -1, self._interval, -1
        beat = time.monotonic()
        while True:
            if version != self._version:
                version = self._version
                try:
                    text, took = await self.make(view, language)
                except NoSuchThing:
                    await response.write(event("", "gone"))
                    return
                pause = max(self._interval, SHARE * took)
                if self.pending() != pending:
                    pending = self.pending()
                    await response.write(event(str(pending), "pending"))
                if (digest := render.digest(text)) != seen:
                    seen = digest
                    await response.write(event(text))
                    beat = time.monotonic()
            await asyncio.sleep(pause)
            if version == self._version:
                self._turn.clear()
                await wait_at_most(self._turn, _BEAT)
            if not await may_look():
                await response.write(event("", "signed-out"))
                return
            if time.monotonic() - beat >= _BEAT:
                await response.write(b": still here\n\n")
                beat = time.monotonic()


headers_key: Final = web.AppKey("headers", dict[str, str])
"""Headers of streams, which start before any middleware sees the response."""


def event(data: str, name: str = "") -> bytes:
    """Return one frame. Any line break starts a new `data:` line, so that no text can end the frame."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = f"event: {name}\n" if name else ""
    return (head + "".join(f"data: {line}\n" for line in lines) + "\n").encode()
