"""Waiting for an event or a time, whichever comes first: used by every loop that can be woken."""

import asyncio
import math
from contextlib import suppress


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, but at most `seconds` of the running loop (may be infinite)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0) if seconds < math.inf else None):
            await event.wait()
