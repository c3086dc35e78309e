"""/metrics as text for Prometheus: one rendering at a time, compressed once for all concurrent scrapes.

Created by the controller and by the node driver for `health`. `Exposition.render` runs in the loop
that owns the metrics; `SharedRender` belongs to the loop that serves, possibly in another thread.
Any number of concurrent scrapes costs one rendering, and pauses between renderings leave the loop
free for most of the time.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest

_GZIP: Final = 16 + zlib.MAX_WBITS
_IN_THREAD: Final = 1 << 14
"""Size from which compression is worth a thread, because it takes longer than the switch."""
_REST_FACTOR: Final = 4.0
_REST_MOST: Final = 2.0
"""Longest pause after a rendering; it is four times as long as the rendering took, up to this."""


class HasRegistry(Protocol):
    """The metrics of a program."""

    registry: CollectorRegistry


class Rendered(Struct, frozen=True):
    """The whole text, in the format 0.0.4, as pieces of one gzip stream."""

    pieces: tuple[bytes, ...]

    def plain(self) -> Iterator[bytes]:
        """Yield the uncompressed text in pieces, for clients without gzip."""
        unpacker = zlib.decompressobj(_GZIP)
        for piece in self.pieces:
            if text := unpacker.decompress(piece):
                yield text


class Exposition:
    """The metrics as text. `more`: text after the registry's, in pieces of a few milliseconds.

    Other tasks run between two pieces.
    """

    def __init__(self, metrics: HasRegistry, more: Callable[[], Iterable[str]] = tuple) -> None:
        self._metrics = metrics
        self._more = more

    async def render(self) -> Rendered:
        packer = zlib.compressobj(wbits=_GZIP)
        pieces = [await _packed(packer.compress, generate_latest(self._metrics.registry))]
        pieces.extend([await _packed(packer.compress, text.encode()) for text in self._more()])
        pieces.append(packer.flush())
        return Rendered(tuple(piece for piece in pieces if piece))


async def _packed(compress: Callable[[bytes], bytes], data: bytes) -> bytes:
    if len(data) >= _IN_THREAD:
        return await asyncio.to_thread(compress, data)
    await asyncio.sleep(0)
    return compress(data)


class SharedRender:
    """One rendering at a time: calls during a rendering share its result."""

    def __init__(self, render: Callable[[], Awaitable[Rendered]]) -> None:
        self._render = render
        self._running: asyncio.Future[Rendered] | None = None
        self._not_before = float("-inf")

    async def get(self) -> Rendered:
        """Return the result. Raises what the rendering raises."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._after_rest())
        return await asyncio.shield(self._running)

    async def _after_rest(self) -> Rendered:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        began = loop.time()
        try:
            return await self._render()
        finally:
            took = loop.time() - began
            self._not_before = loop.time() + min(_REST_FACTOR * took, _REST_MOST)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
