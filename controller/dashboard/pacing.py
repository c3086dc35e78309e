"""Long work in pieces: the controller decides in the same event loop, and must never wait for a page.

Used by pages, exports and rendering. A piece is about `PIECE` seconds of processor time. All
requests together get one piece in each turn of the event loop, so that a hundred pages delay a
decision by no more than one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
PIECE: Final = 0.01
_STEPS: Final = 16
"""Items between two looks at the clock."""
_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items that there are now, and let the event loop run after each piece of work."""
    async for item in paced_each(list(items)):
        yield item


async def paced_each(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items as they are made, which must not depend on what may change meanwhile."""
    since = time.thread_time()
    for number, item in enumerate(items):
        if number % _STEPS == 0 and time.thread_time() - since > PIECE:
            await breath()
            since = time.thread_time()
        yield item


async def breath() -> None:
    """Let the event loop run before the next piece. What was read before may have changed after.

    The lock is passed on once in each turn of the loop:

        turn     1      2      3
        page a   piece  waits  piece
        page b   waits  piece  waits
    """
    loop = asyncio.get_running_loop()
    async with _TURNS.setdefault(loop, asyncio.Lock()):
        await asyncio.sleep(0)
