"""Calls that may block for as long as hardware hangs, from the event loop.

Used for every call to a back end. `asyncio.to_thread` makes a program wait for the thread when it
ends; here an abandoned thread is left behind: a GPU that hangs inside the kernel must not keep the
driver from ending.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class InThread(Protocol):
    """`in_thread`, or a direct call in tests."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def in_thread(work: Callable[[], T]) -> T:
    """Return or raise the outcome of `work`. On cancellation it returns at once, and the thread ends on its own."""
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
