"""Calls that may block for as long as hardware hangs, from the event loop.

Used for every visit to a back end. Unlike `asyncio.to_thread`, which a program waits for when it ends, the thread is left behind
when nobody waits for it any more: a GPU that hangs inside the kernel must not keep the driver from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class InThread(Protocol):
    """`in_thread`, or in tests whatever calls at once."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Cancelled, it comes back at once and the thread ends by itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            set_outcome(outcome)

    def run() -> None:
        set_outcome: Callable[[Any], None]
        outcome: Any
        try:
            outcome, set_outcome = work(), done.set_result
        except BaseException as error:  # noqa: BLE001 (raised again where the result is awaited)
            outcome, set_outcome = error, done.set_exception
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    threading.Thread(target=run, name="hardware", daemon=True).start()
    return await done
