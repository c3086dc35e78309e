"""/metrics as text for Prometheus: rendered at most once at a time, compressed once for all who ask meanwhile.

Made by the controller and by the node driver for `server`. `Exposition.render` runs in the loop that owns what is counted;
`SharedRender` belongs to the loop that serves, which may be another thread's. A crowd of scrapes costs one render, and
renders that follow each other leave the loop free for most of the time.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest

_GZIP: Final = 16 + zlib.MAX_WBITS
_IN_THREAD: Final = 1 << 14
"""Bytes from which compressing is worth a thread: it takes longer than the change of threads."""
_REST_FACTOR: Final = 4.0
_REST_MOST: Final = 2.0
"""Seconds of rest after a render: four times as long as it took, and at most this."""


class HasRegistry(Protocol):
    """What a program counts."""

    registry: CollectorRegistry


@dataclass(frozen=True, slots=True)
class Rendered:
    """The whole text, in the format 0.0.4, as pieces of one gzip stream."""

    pieces: tuple[bytes, ...]

    def plain(self) -> Iterator[bytes]:
        """The text itself, piece by piece, for clients that take no gzip."""
        unpacker = zlib.decompressobj(_GZIP)
        for piece in self.pieces:
            if text := unpacker.decompress(piece):
                yield text


class Exposition:
    """`more`: what follows the registry's text, in pieces of a few milliseconds; between two of them others run."""

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
    """One render at a time: who asks while one runs gets its result."""

    def __init__(self, render: Callable[[], Awaitable[Rendered]]) -> None:
        self._render = render
        self._running: asyncio.Future[Rendered] | None = None
        self._not_before = float("-inf")

    async def get(self) -> Rendered:
        """Raises what the render raises."""
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
        """End the render that is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
