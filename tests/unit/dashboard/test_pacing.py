"""Long work lets the event loop run in between."""

import asyncio
import time

from controller.dashboard.pacing import PIECE, paced


async def test_others_run_between_two_pieces():
    turns = []

    async def other():
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    items, found = list(range(200)), []
    async for item in paced(items):
        spent = time.thread_time()
        while time.thread_time() - spent < PIECE / 10:
            pass
        items.append(item)  # whatever changes meanwhile
        found.append(item)
    running.cancel()
    assert found == list(range(200))
    assert len(turns) >= 5
