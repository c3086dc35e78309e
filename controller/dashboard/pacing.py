"""Long work in pieces: the controller decides in the same event loop, and must never wait for a
page.

Used by pages, exports and rendering. A piece is about `PIECE` seconds of processor time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
PIECE: Final = 0.01
_STEPS: Final = 16
"""Items between two looks at the clock."""


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items that there are now, and let the event loop run after each piece of work."""
    async for item in paced_each(list(items)):
        yield item


async def paced_each(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items as they are made, which must not depend on what may change meanwhile."""
    since = time.thread_time()
    for number, item in enumerate(items):
        if number % _STEPS == 0 and time.thread_time() - since > PIECE:
            await asyncio.sleep(0)
            since = time.thread_time()
        yield item


async def breath() -> None:
    """Let the event loop run between two parts of a page. What was read before may have changed
    after.
    """
    await asyncio.sleep(0)
