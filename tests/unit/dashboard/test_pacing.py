"""Long work lets the event loop run in between."""

import asyncio
import time

from controller.dashboard.pacing import PIECE, breath, paced


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


async def test_many_pages_together_take_one_piece_in_a_turn_of_the_loop():
    ended = []

    async def page():
        await breath()
        async for _ in paced(range(96)):
            until = time.thread_time() + PIECE / 16
            while time.thread_time() < until:
                pass
        ended.append(True)

    pages = [asyncio.ensure_future(page()) for _ in range(16)]
    longest = 0.0
    while len(ended) < len(pages):
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    await asyncio.gather(*pages)
    assert longest < 5 * PIECE, "of 16"
