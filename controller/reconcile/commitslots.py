"""How many commits run at a time, so that no object and no namespace can keep the others from it.

A commit holds a slot until it ends, but no longer than one write may take (`patience`): what has not ended by then, because the
API server does not answer about it or an admission webhook takes its time, goes on without a slot. For a minute after such a
commit its namespace may have only a few (`slow_share`) at a time. So a namespace in which nothing can be written holds all
slots once, for one write timeout, and then a small part of them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

_REMEMBERED: Final = 60.0
"""Seconds after its last slow commit for which a namespace has fewer slots."""


class CommitSlots:
    """`patience` in seconds of the running loop."""

    def __init__(self, total: int, patience: float, slow_share: int) -> None:
        self._free = asyncio.Semaphore(total)
        self._patience = patience
        self._slow_share = slow_share
        self._running: Counter[str] = Counter()
        self._slow_until: dict[str, float] = {}
        self._parked: dict[str, dict[str, None]] = {}

    async def wait(self) -> None:
        """Until one more commit may be started."""
        async with self._free:
            return

    def may_start(self, namespace: str) -> bool:
        """Whether one more commit of the namespace may be started."""
        return not self._is_slow(namespace) or self._running[namespace] < self._slow_share

    def park(self, namespace: str, pod_key: str) -> None:
        """The pod is to be looked at when `may_start` is true again."""
        self._parked.setdefault(namespace, {})[pod_key] = None

    def admitted(self, namespace: str) -> list[str]:
        """Keys of parked pods that may be looked at now; call it when a commit of the namespace has ended."""
        parked = self._parked.get(namespace, {})
        room = self._slow_share - self._running[namespace] if self._is_slow(namespace) else len(parked)
        admitted = list(parked)[: max(room, 0)]
        for key in admitted:
            del parked[key]
        if not parked:
            self._parked.pop(namespace, None)
        return admitted

    @asynccontextmanager
    async def held(self, namespace: str) -> AsyncGenerator[None]:
        """A slot, for the length of one commit or of `patience`, whichever is shorter."""
        loop = asyncio.get_running_loop()
        slow = False

        def too_slow() -> None:
            nonlocal slow
            slow = True
            now = loop.time()
            self._slow_until = {each: until for each, until in self._slow_until.items() if now < until}
            self._slow_until[namespace] = now + _REMEMBERED
            self._free.release()

        self._running[namespace] += 1
        try:
            await self._free.acquire()
            timer = loop.call_later(self._patience, too_slow)
            try:
                yield
            finally:
                timer.cancel()
                if not slow:
                    self._free.release()
        finally:
            self._running[namespace] -= 1
            if not self._running[namespace]:
                del self._running[namespace]

    def _is_slow(self, namespace: str) -> bool:
        until = self._slow_until.get(namespace)
        if until is None:
            return False
        if asyncio.get_running_loop().time() < until:
            return True
        del self._slow_until[namespace]
        return False
