"""Calls to hardware from the event loop. Used for every call to a back end: a GPU that hangs inside the
kernel must not keep the driver from ending.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from hami_dra.api.background import in_background

T = TypeVar("T")


class InThread(Protocol):
    """`in_thread`, or a direct call in tests."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


async def in_thread(work: Callable[[], T]) -> T:
    """Return or raise the outcome of `work`. On cancellation it returns at once, and the thread ends on its own."""
    return await asyncio.wrap_future(in_background(work, "hardware"))
